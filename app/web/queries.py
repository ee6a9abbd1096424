"""The operator's page's queries of the ledger: counts and lists, read-only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, TextClause, func, select, tuple_
from sqlalchemy.orm import Session, aliased

from app.datasets.tables import DatasetRow
from app.domain.states import (
    ACTIVE_RUN_STATES,
    ENDED_REQUEST_STATES,
    RETRYABLE_RUN_STATES,
    ObligationState,
    RequestState,
    RunState,
)
from app.ledger.deadlines import IS_OPEN
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow, RunRow
from app.registry.tables import ModelRow


@dataclass(frozen=True)
class RequestLine:
    """A forget request as a list entry."""

    id: str
    dataset: str
    state: RequestState
    records: int
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    failure_reason: str | None

    def is_overdue(self, now: datetime) -> bool:
        """Return whether the deadline passed and the request is still open."""
        return self.state not in ENDED_REQUEST_STATES and self.due_at < now


@dataclass(frozen=True)
class RunLine:
    """A run as a list entry.

    Attributes:
        target_epsilon: the plan's target.
        retryable: it failed, and its model has had no other run since.
    """

    id: str
    model: str
    kind: str
    state: RunState
    attempt: int
    phase: str | None
    step: int | None
    total_steps: int | None
    epsilon: float | None
    target_epsilon: float
    failure_reason: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    retryable: bool


@dataclass(frozen=True)
class ObligationLine:
    """One model's obligation for a request."""

    model: str
    state: ObligationState
    basis: str
    run: str | None
    certificate: str | None
    failure_reason: str | None


def owed_requests(session: Session, *, limit: int) -> Sequence[RequestLine]:
    """Return the open requests, earliest deadline first."""
    return _request_lines(session, IS_OPEN, limit=limit)


def failed_requests(session: Session, *, limit: int) -> Sequence[RequestLine]:
    """Return the failed requests, earliest deadline first."""
    return _request_lines(session, ForgetRequestRow.state == RequestState.FAILED, limit=limit)


def lines_of(session: Session, rows: Sequence[ForgetRequestRow]) -> Sequence[RequestLine]:
    """Return requests as list entries, in the given order."""
    named = ForgetRequestRow.id.in_([row.id for row in rows])
    lines = {line.id: line for line in _request_lines(session, named, limit=len(rows))}
    return [lines[row.id] for row in rows]


def obligations(session: Session, request_id: str) -> Sequence[ObligationLine]:
    """Return a request's obligations, by model name."""
    query = (
        select(ObligationRow, ModelRow.name)
        .join(ModelRow, ModelRow.id == ObligationRow.model_id)
        .where(ObligationRow.request_id == request_id)
        .order_by(ModelRow.name)
    )
    return [
        ObligationLine(
            model=model,
            state=ObligationState(row.state),
            basis=row.basis,
            run=row.run_id,
            certificate=row.certificate_id,
            failure_reason=row.failure_reason,
        )
        for row, model in session.execute(query)
    ]


def model_names(session: Session) -> Sequence[str]:
    """Return the names of all models, in order."""
    return session.scalars(select(ModelRow.name).order_by(ModelRow.name)).all()


def owed_by_model(session: Session) -> Mapping[str, int]:
    """Return the number of each model's unmet obligations, by model id."""
    unmet = (ObligationState.OPEN, ObligationState.RUNNING, ObligationState.FAILED)
    query = select(ObligationRow.model_id, func.count()).where(ObligationRow.state.in_(unmet))
    rows = session.execute(query.group_by(ObligationRow.model_id))
    return {row[0]: row[1] for row in rows}


def active_runs(session: Session) -> Sequence[RunLine]:
    """Return the queued and active runs, oldest first."""
    return _run_lines(session, RunRow.state.in_(ACTIVE_RUN_STATES))[::-1]


def failed_runs(session: Session, *, limit: int) -> Sequence[RunLine]:
    """Return the failed runs that were their model's last, newest first."""
    failed = RunRow.state == RunState.FAILED
    return _run_lines(session, failed, ~_has_later_run(), limit=limit)


def runs(
    session: Session,
    *,
    state: RunState | None = None,
    model: str | None = None,
    after: tuple[datetime, str] | None = None,
    limit: int,
) -> Sequence[RunLine]:
    """Return a page of runs, newest first, older than the cursor ``after``."""
    wanted: list[ColumnElement[bool]] = []
    if state is not None:
        wanted.append(RunRow.state == state)
    if model is not None:
        wanted.append(ModelRow.name == model)
    if after is not None:
        wanted.append(tuple_(RunRow.created_at, RunRow.id) < after)
    return _run_lines(session, *wanted, limit=limit)


def run(session: Session, row: RunRow) -> RunLine:
    """Return one run as a list entry."""
    (line,) = _run_lines(session, RunRow.id == row.id)
    return line


def outbox_depth(session: Session) -> int:
    """Return the number of outbox rows, due or not."""
    return session.scalar(select(func.count()).select_from(OutboxRow)) or 0


def _request_lines(
    session: Session, wanted: ColumnElement[bool] | TextClause, *, limit: int
) -> Sequence[RequestLine]:
    """Return requests, the earliest deadline first."""
    query = (
        select(ForgetRequestRow, DatasetRow.name)
        .join(DatasetRow, DatasetRow.id == ForgetRequestRow.dataset_id)
        .where(wanted)
        .order_by(ForgetRequestRow.due_at, ForgetRequestRow.id)
        .limit(limit)
    )
    return [
        RequestLine(
            id=row.id,
            dataset=dataset,
            state=RequestState(row.state),
            records=row.record_count,
            received_at=row.received_at,
            due_at=row.due_at,
            completed_at=row.completed_at,
            failure_reason=row.failure_reason,
        )
        for row, dataset in session.execute(query)
    ]


def _run_lines(
    session: Session, *wanted: ColumnElement[bool], limit: int | None = None
) -> Sequence[RunLine]:
    """Return runs, the newest first."""
    query = (
        select(RunRow, ModelRow.name, _has_later_run())
        .join(ModelRow, ModelRow.id == RunRow.model_id)
        .where(*wanted)
        .order_by(RunRow.created_at.desc(), RunRow.id.desc())
        .limit(limit)
    )
    return [
        RunLine(
            id=row.id,
            model=model,
            kind=row.kind,
            state=RunState(row.state),
            attempt=row.attempt,
            phase=row.phase,
            step=row.step,
            total_steps=row.total_steps,
            epsilon=row.epsilon,
            target_epsilon=float(row.plan["epsilon"]),
            failure_reason=row.failure_reason,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            retryable=row.state in RETRYABLE_RUN_STATES and not superseded,
        )
        for row, model, superseded in session.execute(query)
    ]


def _has_later_run() -> ColumnElement[bool]:
    later = aliased(RunRow)
    return (
        select(later.id)
        .where(later.model_id == RunRow.model_id, later.created_at > RunRow.created_at)
        .exists()
    )

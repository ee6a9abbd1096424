"""Statistics of the ledger for its operator: grouped counts, never a row or an id.

Finished rows are counted through indices only; ages are read for open ones only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Float, cast, func, select
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES, BlobState, RequestState
from app.ledger.deadlines import IS_OPEN
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow, RunRow
from app.log import checkpoints
from app.log.tables import LogEntryRow
from app.registry.tables import ModelRow
from app.storage.tables import BlobRow

DAY_S = 86400.0
AGE_BOUNDS_S = tuple(days * DAY_S for days in (1, 3, 7, 14, 21, 28, 30, 45, 90))


@dataclass(frozen=True)
class Ages:
    """The ages of the open requests of one state.

    Attributes:
        count: how many there are.
        sum_s, oldest_s: sum and maximum of their ages since receipt.
        up_to: cumulative counts, one for each of ``AGE_BOUNDS_S``.
    """

    count: int
    sum_s: float
    oldest_s: float
    up_to: Sequence[int]


@dataclass(frozen=True)
class Deadlines:
    """When open requests are due.

    Attributes:
        earliest_s: time until the earliest deadline, negative if it has passed; None without open
            requests.
        warned: requests whose warning was sent and that are not overdue yet.
        overdue: requests past their deadline.
    """

    earliest_s: float | None
    warned: int
    overdue: int


@dataclass(frozen=True)
class RunGroup:
    """Runs of one kind in one state, and their total number of attempts."""

    kind: str
    state: str
    count: int
    attempts: int


@dataclass(frozen=True)
class ActiveRun:
    """A queued or active run; a model has at most one."""

    model: str
    kind: str
    state: str
    phase: str | None
    attempt: int
    step: int | None
    total_steps: int | None


@dataclass(frozen=True)
class OutboxTopic:
    """Pending outbox rows; ``oldest_s`` is how long the oldest has been due, 0 if none is."""

    topic: str
    count: int
    oldest_s: float


@dataclass(frozen=True)
class LogSize:
    """The log: its entries, those without a checkpoint, and the newest checkpoint's age."""

    entries: int
    unsigned: int
    checkpoint_age_s: float | None


@dataclass(frozen=True)
class Shredding:
    """Blobs whose keys await destruction, and objects whose keys are destroyed but not deleted."""

    keys: int
    objects: int


def requests_by_state(session: Session) -> Mapping[RequestState, int]:
    """Return the number of requests in each state, including zeros."""
    query = select(ForgetRequestRow.state, func.count()).group_by(ForgetRequestRow.state)
    found = {state: count for state, count in session.execute(query)}  # noqa: C416 - of rows
    return {state: found.get(state, 0) for state in RequestState}


def open_request_ages(session: Session) -> Mapping[str, Ages]:
    """Return the ages of unfinished requests, by state."""
    age_s = _seconds(func.clock_timestamp() - ForgetRequestRow.received_at)
    up_to = [func.count().filter(age_s <= bound) for bound in AGE_BOUNDS_S]
    query = select(
        ForgetRequestRow.state, func.count(), func.sum(age_s), func.max(age_s), *up_to
    ).where(IS_OPEN)
    return {
        state: Ages(count=count, sum_s=total, oldest_s=oldest, up_to=below)
        for state, count, total, oldest, *below in session.execute(
            query.group_by(ForgetRequestRow.state)
        )
    }


def deadlines(session: Session) -> Deadlines:
    """Return the deadlines of open requests in aggregate."""
    left_s = _seconds(ForgetRequestRow.due_at - func.clock_timestamp())
    query = select(
        func.min(left_s),
        func.count().filter(left_s > 0, ForgetRequestRow.due_soon_noted_at.is_not(None)),
        func.count().filter(left_s <= 0),
    ).where(IS_OPEN)
    earliest_s, warned, overdue = session.execute(query).one()
    return Deadlines(earliest_s=earliest_s, warned=warned, overdue=overdue)


def obligations(session: Session) -> Sequence[tuple[str, str, int]]:
    """Return (model, state, count) for all obligations."""
    counted = (
        select(ObligationRow.model_id, ObligationRow.state, func.count().label("count"))
        .group_by(ObligationRow.model_id, ObligationRow.state)
        .subquery()
    )
    query = select(ModelRow.name, counted.c.state, counted.c.count).join(
        counted, counted.c.model_id == ModelRow.id
    )
    return [(name, state, count) for name, state, count in session.execute(query)]


def run_groups(session: Session) -> Sequence[RunGroup]:
    """Return all runs by kind and state."""
    query = select(RunRow.kind, RunRow.state, func.count(), func.sum(RunRow.attempt))
    return [
        RunGroup(kind=kind, state=state, count=count, attempts=attempts)
        for kind, state, count, attempts in session.execute(
            query.group_by(RunRow.kind, RunRow.state)
        )
    ]


def active_runs(session: Session) -> Sequence[ActiveRun]:
    """Return the queued and active runs."""
    query = (
        select(
            ModelRow.name,
            RunRow.kind,
            RunRow.state,
            RunRow.phase,
            RunRow.attempt,
            RunRow.step,
            RunRow.total_steps,
        )
        .join(ModelRow, ModelRow.id == RunRow.model_id)
        .where(RunRow.state.in_(ACTIVE_RUN_STATES))
    )
    return [ActiveRun(*row) for row in session.execute(query)]


def outbox(session: Session) -> Sequence[OutboxTopic]:
    """Return the outbox's pending rows, by topic."""
    late_s = _seconds(func.clock_timestamp() - func.min(OutboxRow.available_at))
    query = select(OutboxRow.topic, func.count(), func.greatest(late_s, 0.0))
    return [
        OutboxTopic(topic=topic, count=count, oldest_s=oldest_s)
        for topic, count, oldest_s in session.execute(query.group_by(OutboxRow.topic))
    ]


def log_size(session: Session) -> LogSize:
    """Return the log's size and how much of it is signed."""
    last = session.scalar(select(func.max(LogEntryRow.index)))
    entries = 0 if last is None else last + 1
    signed, age_s = checkpoints.newest(session)
    return LogSize(entries=entries, unsigned=entries - signed, checkpoint_age_s=age_s)


def shredding(session: Session) -> Shredding:
    """Return what waits to be shredded."""
    keys = select(func.count()).where(BlobRow.state == BlobState.DOOMED)
    objects = select(func.count()).where(
        BlobRow.state == BlobState.SHREDDED, BlobRow.object_deleted_at.is_(None)
    )
    return Shredding(keys=session.scalar(keys) or 0, objects=session.scalar(objects) or 0)


def _seconds(interval: ColumnElement[Any]) -> ColumnElement[float]:
    return cast(func.extract("epoch", interval), Float)

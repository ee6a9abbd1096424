"""Runs as callers see them: with the model's name, in one statement."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.orm import Session, aliased

from app.domain.states import ACTIVE_RUN_STATES, RETRYABLE_RUN_STATES, RunState
from app.ledger.tables import RunRow
from app.registry.tables import ModelRow
from app.runtime.database.queries import known, newest_first


@dataclass(frozen=True)
class RunView:
    """A run, with its model's name.

    Attributes:
        loss: Present once the target is met.
        retryable: it failed or was cancelled, and its model is there and has had no other run
            since.
    """

    id: str
    model: str
    kind: str
    state: str
    attempt: int
    phase: str | None
    step: int | None
    total_steps: int | None
    epsilon: float | None
    loss: float | None
    failure_reason: str | None
    plan: dict[str, Any]
    phase_seconds: dict[str, float] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reports: list[dict[str, Any]] | None
    retryable: bool

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended."""
        return self.state not in ACTIVE_RUN_STATES


def one(session: Session, run_id: str) -> RunView:
    """Return a run, or raise ``NotFoundError``."""
    return known(next(iter(_read(session, RunRow.id == run_id)), None), "run", run_id)


def newest(session: Session, model_id: str) -> RunView | None:
    """Return the model's newest run."""
    return next(iter(_read(session, RunRow.model_id == model_id, limit=1)), None)


def active(session: Session) -> Sequence[RunView]:
    """Return the runs that are queued or going, the oldest first."""
    return _read(session, RunRow.state.in_(ACTIVE_RUN_STATES))[::-1]


def failed(session: Session, *, limit: int) -> Sequence[RunView]:
    """Return failed runs that can be tried again, the newest first."""
    return _read(session, RunRow.state == RunState.FAILED, _is_current(), limit=limit)


def page(
    session: Session,
    *,
    state: RunState | None = None,
    model: str | None = None,
    after: tuple[datetime, str] | None = None,
    limit: int,
) -> Sequence[RunView]:
    """Return a page of runs, newest first, older than the cursor ``after``."""
    wanted: list[ColumnElement[bool]] = []
    if state is not None:
        wanted.append(RunRow.state == state)
    if model is not None:
        wanted.append(ModelRow.name == model)
    return _read(session, *wanted, after=after, limit=limit)


def _read(
    session: Session,
    *wanted: ColumnElement[bool],
    after: tuple[datetime, str] | None = None,
    limit: int | None = None,
) -> Sequence[RunView]:
    retryable = and_(RunRow.state.in_(RETRYABLE_RUN_STATES), _is_current())
    named: dict[str, Any] = {"model": ModelRow.name, "retryable": retryable}
    names = [field.name for field in fields(RunView)]
    query: Select[Any] = (
        select(*(named[name] if name in named else getattr(RunRow, name) for name in names))
        .join(ModelRow, ModelRow.id == RunRow.model_id)
        .where(*wanted)
    )
    page = newest_first(query, RunRow.created_at, RunRow.id, after=after, limit=limit)
    return [RunView(*row) for row in session.execute(page)]


def _is_current() -> ColumnElement[bool]:
    """Whether a run is the newest one of a model that was neither archived nor deleted."""
    later = aliased(RunRow)
    superseded = (
        select(later.id)
        .where(later.model_id == RunRow.model_id, later.created_at > RunRow.created_at)
        .exists()
    )
    return and_(ModelRow.archived_at.is_(None), ModelRow.deleted_at.is_(None), ~superseded)

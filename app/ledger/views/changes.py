"""Facts that callers can wait for, with one query for each kind."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, func, literal, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES
from app.ledger.reports import finite
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import is_one_of, known


class Kind(StrEnum):
    """The kinds of facts."""

    FORGET_REQUEST = "forget request"
    RUN = "run"
    PROGRESS = "progress of a run"
    MODEL = "model"


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run. ``loss`` is present once the target is met."""

    state: str
    attempt: int
    phase: str | None
    step: int | None
    total_steps: int | None
    epsilon: float | None
    loss: float | None
    failure_reason: str | None

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended."""
        return self.state not in ACTIVE_RUN_STATES


Facts = RunProgress | tuple[object, ...]
"""A snapshot of one thing, which changes with it."""


def facts_of(session: Session, kind: Kind, ids: Collection[str]) -> dict[str, Facts]:
    """Return the facts about those of ``ids`` that exist, without NaN and infinite numbers."""
    rows = ((row[0], map(finite, row[1:])) for row in session.execute(_query(kind, ids)))
    if kind is Kind.PROGRESS:
        return {run_id: RunProgress(*facts) for run_id, facts in rows}  # type: ignore[arg-type]
    return {row_id: tuple(facts) for row_id, facts in rows}


def progress_of(session: Session, run_id: str) -> RunProgress:
    """Return a run's progress, or raise ``NotFoundError``."""
    found = facts_of(session, Kind.PROGRESS, [run_id]).get(run_id)
    return known(found if isinstance(found, RunProgress) else None, "run", run_id)


def _query(kind: Kind, ids: Collection[str]) -> Select[Any]:
    if kind is Kind.FORGET_REQUEST:
        owed = func.concat_ws(":", ObligationRow.id, ObligationRow.state, ObligationRow.run_id)
        every = func.string_agg(owed, aggregate_order_by(literal(","), ObligationRow.id))
        return (
            select(ForgetRequestRow.id, ForgetRequestRow.state, every)
            .outerjoin(ObligationRow, ObligationRow.request_id == ForgetRequestRow.id)
            .where(is_one_of(ForgetRequestRow.id, ids))
            .group_by(ForgetRequestRow.id)
        )
    if kind is Kind.MODEL:
        newest = (
            select(func.concat_ws(":", RunRow.id, RunRow.state))
            .where(RunRow.model_id == ModelRow.id)
            .order_by(RunRow.created_at.desc(), RunRow.id)
            .limit(1)
            .scalar_subquery()
        )
        return (
            select(ModelRow.id, VersionRow.id, VersionRow.state, newest)
            .outerjoin(VersionRow, VersionRow.id == ModelRow.head_version_id)
            .where(is_one_of(ModelRow.id, ids))
        )
    names = ("state", "attempt") if kind is Kind.RUN else RunProgress.__dataclass_fields__
    columns = [getattr(RunRow, name) for name in names]
    return select(RunRow.id, *columns).where(is_one_of(RunRow.id, ids))

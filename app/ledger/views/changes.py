"""Facts that callers can wait for, with one query for each kind."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, func, literal, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES
from app.ledger.runs import finite
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry.datasets.tables import ImportRow
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database.queries import is_one_of

ALL_RUNS = "all"
"""The id of all active runs together."""
_PROGRESS: tuple[Any, ...] = (
    *(RunRow.state, RunRow.attempt, RunRow.phase, RunRow.step, RunRow.total_steps),
    *(RunRow.epsilon, RunRow.loss, RunRow.failure_reason),
)


class Kind(StrEnum):
    """The kinds of facts."""

    FORGET_REQUEST = "forget request"
    RUN = "run"
    ALL_RUNS = "all active runs"
    MODEL = "model"
    IMPORT = "import"


Facts = tuple[object, ...]
"""A snapshot of one thing, which changes with it."""


def facts_of(session: Session, kind: Kind, ids: Collection[str]) -> dict[str, Facts]:
    """Return the facts about those of ``ids`` that exist, without NaN and infinite numbers."""
    return {row[0]: tuple(map(finite, row[1:])) for row in session.execute(_query(kind, ids))}


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
    if kind is Kind.IMPORT:
        columns: list[Any] = [ImportRow.state, ImportRow.attempt, ImportRow.rows]
        return select(ImportRow.id, *columns).where(is_one_of(ImportRow.id, ids))
    if kind is Kind.ALL_RUNS:
        each = func.concat_ws(":", RunRow.id, *_PROGRESS[:4])
        going = RunRow.state.in_(ACTIVE_RUN_STATES)
        every = func.string_agg(each, aggregate_order_by(literal(","), RunRow.id))
        return select(literal(ALL_RUNS), every).where(going)
    return select(RunRow.id, *_PROGRESS).where(is_one_of(RunRow.id, ids))

"""Facts that callers can wait for, with one query for each kind."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, func, literal, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES
from app.ledger.reports import finite
from app.ledger.tables import ForgetRequestRow, ObligationRow, RunRow
from app.registry.tables import ModelRow, VersionRow

_IDS_AT_ONCE = 1000


class Kind(StrEnum):
    """The kinds of facts."""

    FORGET_REQUEST = "forget request"
    RUN = "run"
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


@dataclass(frozen=True)
class Facts:
    """A snapshot of one thing: callers wait until its state changes."""

    state: tuple[object, ...]
    progress: RunProgress | None = None


def facts_of(session: Session, kind: Kind, ids: Collection[str]) -> dict[str, Facts]:
    """Return the facts about the existing ones of ``ids``."""
    query, read = _QUERIES[kind]
    found: dict[str, Facts] = {}
    for some in _batches(list(ids)):
        for row in session.execute(query(some)):
            found[row[0]] = read(row)
    return found


def _batches(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[start : start + _IDS_AT_ONCE]


def _requests(ids: list[str]) -> Select[Any]:
    owed = func.concat_ws(":", ObligationRow.id, ObligationRow.state, ObligationRow.run_id)
    return (
        select(
            ForgetRequestRow.id,
            ForgetRequestRow.state,
            func.string_agg(owed, aggregate_order_by(literal(","), ObligationRow.id)),
        )
        .outerjoin(ObligationRow, ObligationRow.request_id == ForgetRequestRow.id)
        .where(ForgetRequestRow.id.in_(ids))
        .group_by(ForgetRequestRow.id)
    )


def _runs(ids: list[str]) -> Select[Any]:
    columns = [getattr(RunRow, name) for name in RunProgress.__dataclass_fields__]
    return select(RunRow.id, *columns).where(RunRow.id.in_(ids))


def _models(ids: list[str]) -> Select[Any]:
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
        .where(ModelRow.id.in_(ids))
    )


def _state(row: Row[Any]) -> Facts:
    return Facts(state=tuple(row)[1:])


def progress_of(run: RunRow | Row[Any]) -> RunProgress:
    """Return a run's progress; NaN and infinite numbers are left out."""
    columns = [getattr(run, name) for name in RunProgress.__dataclass_fields__]
    values: list[Any] = list(map(finite, columns))
    return RunProgress(*values)


def _progress(row: Row[Any]) -> Facts:
    progress = progress_of(row)
    return Facts(state=(progress.state, progress.attempt), progress=progress)


_QUERIES: dict[
    Kind,
    tuple[
        Callable[[list[str]], Select[Any]],
        Callable[[Row[Any]], Facts],
    ],
] = {
    Kind.FORGET_REQUEST: (_requests, _state),
    Kind.RUN: (_runs, _progress),
    Kind.MODEL: (_models, _state),
}

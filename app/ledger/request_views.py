"""Forget requests as callers see them: read with all their obligations, in one statement."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Connection, Row, String, any_, bindparam, select
from sqlalchemy.orm import Session

from app.datasets.tables import DatasetRow
from app.ledger.accepting import Taken
from app.ledger.tables import ForgetRequestRow, ObligationRow
from app.registry.tables import ModelRow


@dataclass(frozen=True)
class OwedView:
    """What a request is owed by one model, with the model's name."""

    model: str
    state: str
    basis: str
    run: str | None = None
    certificate: str | None = None
    failure_reason: str | None = None


@dataclass(frozen=True)
class RequestView:
    """A forget request, its dataset's name, and its obligations ordered by id."""

    id: str
    dataset: str
    state: str
    records: int
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    failure_reason: str | None
    obligations: tuple[OwedView, ...]


_ROW = (
    ForgetRequestRow.id,
    DatasetRow.name.label("dataset"),
    ForgetRequestRow.state,
    ForgetRequestRow.record_count.label("records"),
    ForgetRequestRow.received_at,
    ForgetRequestRow.due_at,
    ForgetRequestRow.completed_at,
    ForgetRequestRow.failure_reason,
)
_SHOWN = [of.name for of in fields(RequestView)][: len(_ROW)]
_OWED = (
    ModelRow.name,
    ObligationRow.state,
    ObligationRow.basis,
    ObligationRow.run_id,
    ObligationRow.certificate_id,
    ObligationRow.failure_reason,
)
_QUERY = (
    select(*_ROW, *_OWED)
    .join(DatasetRow, DatasetRow.id == ForgetRequestRow.dataset_id)
    .outerjoin(ObligationRow, ObligationRow.request_id == ForgetRequestRow.id)
    .outerjoin(ModelRow, ModelRow.id == ObligationRow.model_id)
    .where(ForgetRequestRow.id == any_(bindparam("ids", type_=ARRAY(String))))
    .order_by(ObligationRow.id)
)


def read(database: Session | Connection, ids: Collection[str]) -> dict[str, RequestView]:
    """Return those of the requests that exist, by id."""
    rows: dict[str, list[Row[*tuple[Any, ...]]]] = {}
    for row in database.execute(_QUERY, {"ids": list(ids)}):
        rows.setdefault(row[0], []).append(row)
    return {request_id: _view(of) for request_id, of in rows.items()}


def of_taken(taken: Taken) -> RequestView | None:
    """Return a new request as it was just stored if it waits for runs; else None."""
    row = taken.row
    if row is None or not taken.is_plain:
        return None
    owed = sorted(taken.owed, key=lambda of: of[1].id)
    return RequestView(
        id=row.id,
        dataset=taken.dataset,
        state=row.state,
        records=row.record_count,
        received_at=row.received_at,
        due_at=row.due_at,
        completed_at=None,
        failure_reason=None,
        obligations=tuple(OwedView(model, o.state, o.basis) for model, o in owed),
    )


def _view(rows: list[Row[*tuple[Any, ...]]]) -> RequestView:
    width = len(_ROW)
    owed = tuple(OwedView(*row[width:]) for row in rows if row[width] is not None)
    shown = zip(_SHOWN, rows[0], strict=False)
    return RequestView(**dict(shown), obligations=owed)

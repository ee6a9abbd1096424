"""Forget requests as callers see them: read with all their obligations, in one statement."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Row,
    String,
    any_,
    bindparam,
    or_,
    select,
)
from sqlalchemy.orm import Session

from app.access.pseudonyms import Pseudonyms
from app.ledger.everywhere import external_keys
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow, ObligationRow
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow, RecordRow
from app.registry.tables import ModelRow
from app.runtime.database.queries import is_one_of, known, newest_first

UNTOLD: Final = ("salt",)
"""Of a request: with it, guessed ids could be tried."""


@dataclass(frozen=True)
class ObligationView:
    """What a request is owed by one model, with the model's name."""

    model: str
    state: str
    basis: str
    run: str | None
    certificate: str | None
    failure_reason: str | None


@dataclass(frozen=True)
class RequestView:
    """A forget request, its dataset's name, and its obligations by the models' names.

    Attributes:
        pushes: How many pushes brought the records that it names.
        replacements: How many corrected records took the place of those that it names.
        completed_at: When its records were erased, also those of a cancelled request.
        ground: Of a refusal: a paragraph of GDPR Art. 17(3), or `other`.
        explanation: What a person wrote about the refusal.
        extension_reason: Why its deadline was extended, if it was.
        salt: What the receipt's salt is derived from, until the evidence is destroyed.
    """

    id: str
    dataset: str
    state: str
    records: int
    pushes: int
    replacements: int
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    failure_reason: str | None
    ground: str | None
    explanation: str | None
    extension_reason: str | None
    salt: bytes | None = field(repr=False)
    obligations: tuple[ObligationView, ...]

    def is_overdue(self, now: datetime) -> bool:
        """Say whether the deadline passed and it is neither refused nor completed."""
        return self.completed_at is None and self.ground is None and self.due_at < now


_RENAMED: dict[str, Any] = {
    "dataset": DatasetRow.name,
    "records": ForgetRequestRow.record_count,
    "pushes": ForgetRequestRow.push_count,
    "replacements": ForgetRequestRow.replacement_count,
}
_ROW = [
    (_RENAMED.get(each.name) or getattr(ForgetRequestRow, each.name)).label(each.name)
    for each in fields(RequestView)
    if each.name != "obligations"
]
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
    .order_by(ModelRow.name)
)


def read(database: Session | Connection, ids: Collection[str]) -> dict[str, RequestView]:
    """Return those of the requests that exist, by id and in the order of ``ids``."""
    rows: dict[str, list[Row[*tuple[Any, ...]]]] = {}
    for row in database.execute(_QUERY, {"ids": list(ids)}):
        rows.setdefault(row.id, []).append(row)
    return {request_id: _view(rows[request_id]) for request_id in ids if request_id in rows}


def one(session: Session, request_id: str) -> RequestView:
    """Return a request, or raise ``NotFoundError``."""
    return known(read(session, [request_id]).get(request_id), "forget request", request_id)


def most_urgent(session: Session, wanted: ColumnElement[bool], *, limit: int) -> list[RequestView]:
    """Return the requests that are wanted, the earliest deadline first."""
    query = select(ForgetRequestRow.id).where(wanted)
    order = (ForgetRequestRow.due_at, ForgetRequestRow.id)
    ids = session.scalars(query.order_by(*order).limit(limit)).all()
    return list(read(session, ids).values())


def _view(rows: list[Row[*tuple[Any, ...]]]) -> RequestView:
    width = len(_ROW)
    owed = tuple(ObligationView(*row[width:]) for row in rows if row[width] is not None)
    return RequestView(*(*rows[0][:width], owed))


MOST_FOUND = 50


def find(session: Session, pseudonyms: Pseudonyms, name: str) -> list[RequestView]:
    """Return the newest requests with this id or ticket, or about this subject or record.

    ``name`` is as the sender writes it; ``pseudonyms`` hash it under the service's key.
    """
    known = datasets.datasets(session)
    external = external_keys(session, pseudonyms, name)
    people = [pseudonyms.subject(each.id, name) for each in known]
    records = [pseudonyms.record(each.id, name) for each in known]
    # Each statement by itself, with an index of its own: joined, they may go through all requests.
    theirs = or_(is_one_of(RecordRow.subject_key, people), is_one_of(RecordRow.record_key, records))
    found = session.scalars(select(RecordRow.seq).where(theirs)).all()
    named = select(ForgottenRecordRow.request_id).where(
        is_one_of(ForgottenRecordRow.record_seq, found)
    )
    request = ForgetRequestRow
    mine = select(request.id).where(is_one_of(request.external_key, external))
    ids = {name, *session.scalars(named), *session.scalars(mine)}
    asked = select(request.id).where(is_one_of(request.id, ids))
    newest = newest_first(asked, request.received_at, request.id, limit=MOST_FOUND)
    return list(read(session, session.scalars(newest).all()).values())

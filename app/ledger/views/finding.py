"""Finding requests by what their senders know: a ticket, a person, a record, or our own id.

None of these is stored. They are compared as keyed hashes, in every dataset at once.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, any_, literal, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.tables import RecordRow
from app.ledger.subjects.requests import external_id_in
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow
from app.ledger.views import request_views
from app.ledger.views.request_views import RequestView

MOST = 50


def find(
    session: Session, pseudonyms: Pseudonyms, name: str, *, limit: int = MOST
) -> list[RequestView]:
    """Return the requests with this id or ticket, or about this subject or record, newest first.

    Args:
        session: the ledger.
        pseudonyms: hash the name under the service's key.
        name: as the sender writes it.
        limit: the most requests that are returned.
    """
    known = datasets.datasets(session)
    tickets = [name, *(external_id_in(name, each.name) for each in known)]
    external = [pseudonyms.external_id(ticket) for ticket in tickets]
    people = [pseudonyms.subject(each.id, name) for each in known]
    records = [pseudonyms.record(each.id, name) for each in known]
    # Each statement by itself, with an index of its own: joined, they may go through all requests.
    theirs = or_(_is_any(RecordRow.subject_key, people), _is_any(RecordRow.record_key, records))
    found = session.scalars(select(RecordRow.seq).where(theirs)).all()
    named = select(ForgottenRecordRow.request_id).where(
        _is_any(ForgottenRecordRow.record_seq, found)
    )
    mine = select(ForgetRequestRow.id).where(_is_any(ForgetRequestRow.external_key, external))
    ids = {name, *session.scalars(named), *session.scalars(mine)}
    newest = (
        select(ForgetRequestRow.id)
        .where(_is_any(ForgetRequestRow.id, ids))
        .order_by(ForgetRequestRow.received_at.desc(), ForgetRequestRow.id.desc())
        .limit(limit)
    )
    return list(request_views.read(session, session.scalars(newest).all()).values())


def _is_any(column: InstrumentedAttribute[Any], values: Collection[Any]) -> ColumnElement[bool]:
    return column == any_(literal(list(values), ARRAY(column.type)))

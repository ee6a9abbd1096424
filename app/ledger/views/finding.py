"""Finding requests by what their senders know: a ticket, a person, a record, or our own id.

None of these is stored. They are compared as keyed hashes, in every dataset at once.
"""

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.database.queries import is_one_of, newest_first
from app.datasets import repository as datasets
from app.datasets.pseudonyms import Pseudonyms
from app.datasets.tables import RecordRow
from app.ledger.subjects.requests import external_id_in
from app.ledger.tables import ForgetRequestRow, ForgottenRecordRow
from app.ledger.views import request_views
from app.ledger.views.request_views import RequestView

MOST = 50


def find(session: Session, pseudonyms: Pseudonyms, name: str) -> list[RequestView]:
    """Return the newest requests with this id or ticket, or about this subject or record.

    ``name`` is as the sender writes it; ``pseudonyms`` hash it under the service's key.
    """
    known = datasets.datasets(session)
    tickets = [name, *(external_id_in(name, each.name) for each in known)]
    external = [pseudonyms.external_id(ticket) for ticket in tickets]
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
    newest = newest_first(asked, request.received_at, request.id, limit=MOST)
    return list(request_views.read(session, session.scalars(newest).all()).values())

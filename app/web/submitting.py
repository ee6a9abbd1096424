"""``/requests/new``: a new forget request, shown with what it would reach before it is sent.

Ids go from the form to its preview and back with the answer. Between the two, nothing is stored.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from fastapi import Response
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.api.forgetting import ForgettingOf
from app.api.protocol.access import ServicesOf
from app.api.protocol.dependencies import Make
from app.api.protocol.schemas import ExternalId, OwnerId
from app.domain.errors import InvalidInputError
from app.evidence.certificates.receipts import Receipt
from app.ledger import previews, repository
from app.ledger.new_requests import Call, NewForgetRequest
from app.ledger.requests import ForgetRequests
from app.registry.datasets import repository as datasets
from app.web import pages
from app.web.access import RequestsSeeker, RequestsSender, RequestsWriter, Visitor
from app.web.forms import Form
from app.web.rendering import render

router = pages.router()

_MOST_IDS = 10_000
_Ids = TypeAdapter(list[OwnerId])
_Ticket = TypeAdapter(ExternalId)


@router.get("/requests/new")
def ask(services: ServicesOf, visitor: RequestsWriter) -> Response:
    """Ask who or what must be forgotten."""
    with services.database.transaction() as session:
        names = [
            each.name
            for each in datasets.datasets(session)
            if not each.public and each.archived_at is None
        ]
    return render("requests/new_request.html", visitor, datasets=names)


@router.post("/requests/preview")
def preview(
    services: ServicesOf, forgetting: ForgettingOf, visitor: RequestsSender, form: Form, make: Make
) -> Response:
    """Show which models a request would reach, and what it would cost."""
    fields = _fields(form)
    database, acceptance, key_id = services.database, services.acceptance, visitor.caller.key_id
    found = [
        previews.preview(database, acceptance, asked, api_key_id=key_id, make=make)
        for asked in forgetting.parts_of(_call(fields, visitor))
    ]
    return render(
        "requests/preview.html", visitor, fields=fields, previews=found, ids=_count(fields)
    )


@router.post("/requests")
async def submit(forgetting: ForgettingOf, visitor: RequestsSender, form: Form) -> Response:
    """Send a request; sent twice, it is accepted once."""
    call = _call(_fields(form), visitor)
    if call.request.dataset:
        made = [(await forgetting.submit(call), call.request)]
    else:
        made = await run_in_threadpool(forgetting.everywhere, call)
    return render("requests/accepted.html", visitor, status=201, made=made)


@router.post("/requests/{request_id}/receipt")
def receipt(request_id: str, services: ServicesOf, _: RequestsSeeker, form: Form) -> Response:
    """Return the receipt, if these are the ids that the request named."""
    fields = _fields(form)
    with services.database.transaction() as session:
        document = receipt_of(
            session,
            services.forget_requests,
            request_id,
            record_ids=_lines(fields["record_ids"]),
            subject_ids=_lines(fields["subject_ids"]),
        )
    return pages.attachment(document, f"{request_id}.receipt.json")


def _call(fields: Mapping[str, str], visitor: Visitor) -> Call:
    request = NewForgetRequest(
        dataset=fields["dataset"],
        record_ids=_lines(fields["record_ids"]),
        subject_ids=_lines(fields["subject_ids"]),
        external_id=fields["external_id"] or None,
        idempotency_key=fields["call"],
    )
    return Call(request, visitor.caller.key_id, visitor.caller.key_id)


def _fields(form: Mapping[str, str]) -> dict[str, str]:
    """Return the checked fields, with one id on each line."""
    kind = form.get("kind", "subject_ids")
    fields = {name: form.get(name, "") for name in ("record_ids", "subject_ids")}
    if kind not in fields:
        raise InvalidInputError("say whether these are ids of people or of records")
    fields[kind] += f"\n{form.get('ids', '')}"
    fields = {name: "\n".join(_ids(text)) for name, text in fields.items()}
    if not any(fields.values()):
        raise InvalidInputError("give at least one id, one on each line")
    if _count(fields) > _MOST_IDS:
        raise InvalidInputError(f"at most {_MOST_IDS:,} ids here: the API takes more")
    ticket = form.get("external_id", "").strip()
    try:
        external_id = _Ticket.validate_python(ticket) if ticket else ""
    except ValidationError as error:
        raise InvalidInputError("the ticket is too long, or has a character of no text") from error
    return fields | {
        "dataset": form.get("dataset", ""),
        "external_id": external_id,
        "call": form.get("call") or str(uuid4()),
    }


def _ids(text: str) -> list[str]:
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    try:
        return _Ids.validate_python(list(dict.fromkeys(filter(None, lines))))
    except ValidationError as error:
        raise InvalidInputError("an id has at most 512 characters") from error


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _count(fields: Mapping[str, str]) -> int:
    return sum(len(_lines(fields[name])) for name in ("record_ids", "subject_ids"))


def receipt_of(
    session: Session,
    requests: ForgetRequests,
    request_id: str,
    *,
    record_ids: Sequence[str],
    subject_ids: Sequence[str],
) -> dict[str, Any]:
    """Return the receipt of a request as ``expunge verify --receipt`` reads it.

    The ids are not stored here, so they are given again.

    Raises:
        NotFoundError: the request does not exist.
        InvalidInputError: these are not the ids that it named.
    """
    row = repository.request(session, request_id)
    salt = requests.receipt_salt(request_id)
    receipt = Receipt(salt, row.record_count, tuple(record_ids), tuple(subject_ids))
    stored = set(repository.commitments_of(session, request_id))
    people = receipt.of_subjects(stored)
    named = receipt.of_records.union(*(found.values() for found in people))
    if not stored or named != stored or not all(people):
        raise InvalidInputError(
            "these are not the ids of this request: give all of them, as they were sent, and no "
            "others"
        )
    return {
        "request": request_id,
        "receipt_salt": base64.b64encode(salt).decode(),
        "records": row.record_count,
        "record_ids": list(record_ids),
        "subject_ids": list(subject_ids),
    }

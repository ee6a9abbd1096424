"""``/requests``: what failed or is due first; sending, finding, deciding, cancelling, answering.

Ids go from a form to its preview and back with the answer. Between the two, nothing is stored.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

from fastapi import Header, Response
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.api import forget_requests as api
from app.api.decisions import PersonsText
from app.api.forget_requests import ForgettingOf
from app.api.protocol.access import Make, ServicesOf, require_scope
from app.api.protocol.schemas import ExternalId, OwnerId, PageByMoment
from app.delivery.publishing import repository as publishing
from app.domain.errors import InvalidInputError, NotFoundError
from app.domain.states import UNMET_OBLIGATION_STATES, Ground, RequestState, Scope
from app.evidence.certificates.receipts import Receipt
from app.ledger import decisions, previews, repository
from app.ledger.certificates import issuing
from app.ledger.deadlines import IS_OPEN
from app.ledger.new_requests import Call, NewForgetRequest
from app.ledger.requests import ForgetRequests
from app.ledger.views import request_views, run_views
from app.ledger.views.request_views import ObligationView, RequestView
from app.operations.monitoring import collector
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.services import Services
from app.web import figures, letters, pages
from app.web.access import (
    Form,
    RequestsReader,
    RequestsSeeker,
    RequestsSender,
    RequestsWriter,
    SessionsOf,
    Visitor,
)
from app.web.pages import render
from app.web.runs import queue_or_none

router = pages.router()

_MOST = 200
_LONGEST_NAME = 512
_MOST_IDS = 10_000
_Ids = TypeAdapter(list[OwnerId])
_Ticket = TypeAdapter(ExternalId)
_Text = TypeAdapter(PersonsText)
_Row = TypeAdapter(dict[str, Any])


@router.get("/requests")
def show_queue(services: ServicesOf, sessions: SessionsOf, visitor: RequestsReader) -> Response:
    """Show open requests, what failed first, then the earliest deadline; and the last weeks."""
    with services.database.transaction() as session:
        lines = request_views.most_urgent(session, IS_OPEN, limit=_MOST + 1)
        runs = {run.model: run for run in run_views.active(session)}
        counts = collector.requests_by_state(session)
        overdue = collector.overdue_requests(session)
        weekly = _by_week(session)
    found = queue_or_none(sessions)
    return render(
        "requests/requests.html",
        visitor,
        waiting=sorted(lines[:_MOST], key=lambda line: not line.failure_reason),
        runs=runs,
        idle=found is not None and not found.workers,
        unmet=UNMET_OBLIGATION_STATES,
        most=_MOST if len(lines) > _MOST else None,
        counts=counts,
        overdue=overdue,
        weekly=weekly,
    )


@router.get("/requests/all")
def show_all(
    services: ServicesOf,
    visitor: RequestsReader,
    page: PageByMoment,
    state: str = "",
    model: str = "",
) -> Response:
    """List requests, newest first."""
    wanted = RequestState(state) if state in list(RequestState) else None
    with services.database.transaction() as session:
        rows = repository.requests(
            session,
            state=wanted,
            model=model or None,
            after=page.after,
            limit=page.limit + 1,
        )
        rows, next_cursor = page.cut(rows, lambda row: (row.received_at, row.id))
        lines = list(request_views.read(session, [row.id for row in rows]).values())
        names = registry.model_names(session)
    return render(
        "all.html",
        visitor,
        what="request",
        lines=lines,
        models=names,
        states=list(RequestState),
        wanted=wanted,
        model=model,
        first=page.after is None,
        next_cursor=next_cursor,
    )


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
    parts = forgetting.parts_of(_call(fields, visitor))
    for asked in parts:
        forgetting.check_replacement(asked)
    found = [
        previews.preview(database, acceptance, asked, api_key_id=key_id, make=make)
        for asked in parts
    ]
    return render(
        "requests/preview.html", visitor, fields=fields, previews=found, ids=_count(fields)
    )


@router.post("/requests")
async def submit(
    services: ServicesOf,
    forgetting: ForgettingOf,
    visitor: RequestsSender,
    form: Form,
    accept_language: Annotated[str | None, Header()] = None,
) -> Response:
    """Send a request; sent twice, it is accepted once. Show what the person can be told now."""
    call = _call(_fields(form), visitor)
    if call.request.dataset:
        made = [(await forgetting.submit(call), call.request)]
    else:
        made = await run_in_threadpool(forgetting.everywhere, call)
    letters_of: list[_Letter] = []
    if visitor.allows(Scope.FORGET_READ):
        views = [line for line, _ in made]
        letters_of = await run_in_threadpool(_letters, services, views)
    return render(
        "requests/accepted.html",
        visitor,
        status=201,
        made=made,
        letters=letters_of,
        **_language(services, None, accept_language),
    )


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


@router.post("/requests/found")
def find(services: ServicesOf, visitor: RequestsSeeker, form: Form) -> Response:
    """List the requests with a ticket or id, or about a person or record.

    A form that is posted, since addresses are written to logs.
    """
    name = form.get("name", "").strip()
    if not 1 <= len(name) <= _LONGEST_NAME or "\0" in name:
        raise InvalidInputError(f"give a ticket or an id of at most {_LONGEST_NAME} characters")
    with services.database.transaction() as session:
        lines = request_views.find(session, services.pseudonyms, name)
    return render("requests/found.html", visitor, lines=lines, most=request_views.MOST_FOUND)


@router.get("/requests/{request_id}")
def show(request_id: str, services: ServicesOf, visitor: RequestsReader) -> Response:
    """Show one request with its obligations."""
    with services.database.transaction() as session:
        line = request_views.one(session, request_id)
    return render("requests/request.html", visitor, line=line)


@router.get("/requests/{request_id}/answer")
def answer(
    request_id: str,
    services: ServicesOf,
    visitor: RequestsReader,
    language: str | None = None,
    accept_language: Annotated[str | None, Header()] = None,
) -> Response:
    """Show what may be told the person, on one page to be printed, in one of the languages."""
    with services.database.transaction() as session:
        line = request_views.one(session, request_id)
    (letter,) = _letters(services, [line])
    chosen = _language(services, language, accept_language)
    return render("requests/answer.html", visitor, **letter._asdict(), **chosen)


@router.get("/requests/{request_id}/certificates")
def certificates(request_id: str, services: ServicesOf, visitor: RequestsReader) -> Response:
    """Return all certificates of a request, as the API does."""
    found = _certificates(request_id, services, visitor)
    return pages.attachment(found, f"{request_id}.certificates.json")


@router.get("/requests/{request_id}/certificates/{certificate_id}")
def certificate(
    request_id: str, certificate_id: str, services: ServicesOf, visitor: RequestsReader
) -> Response:
    """Return one certificate with the proofs of this request's records, to be verified."""
    for found in _certificates(request_id, services, visitor):
        if found["certificate"] == certificate_id:
            return pages.attachment(found["bundle"], f"{certificate_id}.certificate.json")
    raise NotFoundError("certificate", certificate_id)


@router.post("/requests/{request_id}/retry")
def retry(request_id: str, services: ServicesOf, _: RequestsSender) -> Response:
    """Give a failed request another run."""
    with services.database.transaction() as session:
        services.forget_requests.retry(session, request_id)
    return pages.redirect(f"/requests/{request_id}")


@router.post("/requests/{request_id}/accept")
def accept(request_id: str, forgetting: ForgettingOf, _: RequestsSender) -> Response:
    """Accept a request that was held."""
    forgetting.accept_held(request_id)
    return pages.redirect(f"/requests/{request_id}")


@router.post("/requests/{request_id}/decide")
def decide(request_id: str, services: ServicesOf, _: RequestsSender, form: Form) -> Response:
    """Refuse a request that was held, reopen it, or extend its deadline."""
    choice, written = form.get("choice"), form.get("text", "").strip()
    try:
        text = _Text.validate_python(written) if written else None
    except ValidationError as error:
        raise InvalidInputError("the text is too long, or has a character of no text") from error
    with services.database.transaction() as session:
        if choice == "refuse" and form.get("ground") in list(Ground):
            decisions.refuse(session, request_id, Ground(form["ground"]), text)
        elif choice == "reopen":
            decisions.reopen(session, request_id)
        elif choice == "extend" and text is not None:
            decisions.extend(session, request_id, text)
        else:
            raise InvalidInputError("choose a ground to refuse on, or write why it takes longer")
    return pages.redirect(f"/requests/{request_id}")


@router.post("/requests/{request_id}/cancel")
def cancel(request_id: str, services: ServicesOf, _: RequestsSender) -> Response:
    """Cancel a request that no run has started on."""
    with services.database.transaction() as session:
        services.forget_requests.cancel(session, request_id)
    return pages.redirect(f"/requests/{request_id}")


class _Letter(NamedTuple):
    """A request as the person is told of it: what models owed and certified."""

    line: RequestView
    certificates: list[tuple[ObligationView, Mapping[str, Any]]]
    withdrawing: bool


def _letters(services: Services, lines: Sequence[RequestView]) -> list[_Letter]:
    with services.database.transaction() as session:
        copied = {model for model, *_ in publishing.not_withdrawn(session)}
        return [
            _Letter(
                line,
                [
                    (owed, issuing.predicate_of(session, owed.certificate))
                    for owed in line.obligations
                    if owed.certificate is not None
                ],
                not copied.isdisjoint(owed.model for owed in line.obligations),
            )
            for line in lines
        ]


def _language(services: Services, asked: str | None, accepted: str | None) -> dict[str, Any]:
    """Return what a letter needs of its language."""
    known = letters.catalogues(services.settings.data_dir)
    language = letters.language_of(asked, accepted, known)
    texts = letters.texts(language, known)
    return {
        "language": language,
        "languages": list(letters.named(known)),
        "gettext": texts.gettext,
        "ngettext": texts.ngettext,
    }


def _by_week(session: Session) -> list[list[str]]:
    last = figures.last_weeks()
    hours = figures.hours_to_certificate(session, last[0])

    def spelt(value: float | None, form: str) -> str:
        return "–" if value is None else form.format(value)

    return figures.rows_of(
        last,
        {
            week: [
                f"{found.received:,}",
                spelt(found.met_percent, "{:.0f} %"),
                *(spelt(taken, "{:.1f} h") for taken in hours.get(week, (None, None))),
            ]
            for week, found in figures.requests_by_week(session, last[0]).items()
        },
    )


def _certificates(request_id: str, services: Services, visitor: Visitor) -> list[dict[str, Any]]:
    found = api.list_forget_request_certificates(request_id, services, visitor.caller)
    return [each.model_dump(mode="json", exclude_none=True) for each in found]


def _call(fields: Mapping[str, str], visitor: Visitor) -> Call:
    replacement = _rows(fields["replacement"])
    if replacement:
        require_scope(visitor.caller, Scope.DATA_WRITE)
    request = NewForgetRequest(
        dataset=fields["dataset"],
        record_ids=_lines(fields["record_ids"]),
        subject_ids=_lines(fields["subject_ids"]),
        external_id=fields["external_id"] or None,
        idempotency_key=fields["call"],
        hold=bool(fields["hold"]),
        replacement=replacement,
        replacements=len(replacement),
    )
    return Call(request, visitor.caller.key_id, visitor.caller.key_id)


def _fields(form: Mapping[str, str]) -> dict[str, str]:
    """Return the checked fields, with one id on each line."""
    kind = form.get("kind", "subject_ids")
    fields = {name: form.get(name, "") for name in ("record_ids", "subject_ids")}
    if kind not in fields:
        raise InvalidInputError("say whether these are ids of people or of records")
    fields[kind] += f"\n{form.get('ids') or form.get('name', '')}"
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
        "hold": form.get("hold", ""),
        "replacement": form.get("replacement", "").strip(),
        "call": form.get("call") or str(uuid4()),
    }


def _rows(text: str) -> list[dict[str, Any]]:
    try:
        return [_Row.validate_json(line) for line in text.splitlines() if line.strip()]
    except ValidationError:  # it quotes values
        raise InvalidInputError("give each corrected row as a JSON object on one line") from None


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
    salt = requests.receipt_salt(row)
    if salt is None:
        raise InvalidInputError("the evidence of this request is destroyed: its time was over")
    receipt = Receipt(salt, row.record_count, tuple(record_ids), tuple(subject_ids))
    stored = set(repository.commitments_of(session, request_id))
    found = [each for of_ids in receipt.find(stored) for each in of_ids]
    if not stored or stored != {one for each in found for one in each.values()} or not all(found):
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

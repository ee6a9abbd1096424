"""``/requests``: forget requests, what is owed to them, certificates, and what may be done."""

from typing import Any

from fastapi import Response

from app.api import forget_requests as api
from app.api.protocol.access import ServicesOf
from app.api.protocol.cursors import PageByMoment
from app.delivery.publishing import repository as publishing
from app.domain.errors import InvalidInputError, NotFoundError
from app.domain.states import RequestState
from app.ledger import repository
from app.ledger.certificates import issued
from app.ledger.views import request_views
from app.registry import repository as registry
from app.services import Services
from app.web import pages
from app.web.access import RequestsReader, RequestsSeeker, RequestsSender, Visitor
from app.web.forms import Form
from app.web.rendering import render

router = pages.router()

_LONGEST_NAME = 512


@router.get("/requests")
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
        "requests/requests.html",
        visitor,
        lines=lines,
        models=names,
        states=list(RequestState),
        wanted=wanted,
        model=model,
        first=page.after is None,
        next_cursor=next_cursor,
    )


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
def answer(request_id: str, services: ServicesOf, visitor: RequestsReader) -> Response:
    """Show what may be told the person, on one page to be printed."""
    with services.database.transaction() as session:
        line = request_views.one(session, request_id)
        certificates = [
            (owed, issued.predicate_of(session, owed.certificate))
            for owed in line.obligations
            if owed.certificate is not None
        ]
        models = {owed.model for owed in line.obligations}
        withdrawing = any(model in models for model, *_ in publishing.not_withdrawn(session))
    return render(
        "requests/answer.html",
        visitor,
        line=line,
        certificates=certificates,
        withdrawing=withdrawing,
    )


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


@router.post("/requests/{request_id}/cancel")
def cancel(request_id: str, services: ServicesOf, _: RequestsSender, form: Form) -> Response:
    """Cancel a request that no run has started on, and bring its records back if asked to."""
    with services.database.transaction() as session:
        services.forget_requests.cancel(session, request_id, restore="restore" in form)
    return pages.redirect(f"/requests/{request_id}")


def _certificates(request_id: str, services: Services, visitor: Visitor) -> list[dict[str, Any]]:
    found = api.list_forget_request_certificates(request_id, services, visitor.caller)
    return [each.model_dump(mode="json", exclude_none=True) for each in found]

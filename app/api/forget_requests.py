"""``/v1/forget-requests``: what became of them, cancelling, and another try."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.api.certificates import BundleAnswer, Since, bundle_answer
from app.api.protocol.access import ForgetReader, ForgetWriter, GuardedRoute, ServicesOf, part
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, ExternalId, Page, PageByMoment, shaped_as
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response, wait_of
from app.domain.errors import NotFoundError
from app.domain.states import RequestState
from app.ledger import repository
from app.ledger.certificates import issuing
from app.ledger.everywhere import external_keys
from app.ledger.views import request_views
from app.ledger.views.changes import Kind
from app.ledger.views.request_views import RequestView
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.group_commit import GroupCommit
from app.services import Services

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
RETRY_AFTER_S = "2"
_ENDED = (RequestState.COMPLETED, RequestState.FAILED, RequestState.CANCELLED)


@shaped_as(
    RequestView,
    external_id=(
        str | None,
        {
            "description": "Only in the answer to the call that sent it, else null: it is not "
            "stored. List requests by it instead."
        },
    ),
    receipt_salt=(str, {}),
    certificates=(
        str | None,
        {
            "description": "Where the certificates are, with the proofs of this request's records; "
            "null while there is none."
        },
    ),
)
class ForgetAnswer(Answer):
    """A forget request. With ``receipt_salt`` its sender can show that it was covered."""


class ForgetAnswers(Answer):
    """A request without a dataset: a forget request in each dataset that knows its people."""

    requests: list[ForgetAnswer]


class CertificateOfObligation(Answer):
    """A model's certificate for this request."""

    model: str
    certificate: str
    bundle: BundleAnswer


class Polls:
    """Reads requests, for all calls of one process: those that arrive at the same time together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._commits = GroupCommit(self._read_all)

    async def read(self, request_id: str) -> RequestView:
        """Return a request; ``NotFoundError`` if there is none."""
        return await asyncio.wrap_future(self._commits.start(request_id))

    def _read_all(self, ids: Sequence[str]) -> list[RequestView | Exception]:
        with self._database.at_once() as connection:
            found = request_views.read(connection, ids)
        return [found.get(i) or NotFoundError("forget request", i) for i in ids]


@router.get("", **answers())
def list_forget_requests(
    services: ServicesOf,
    _: ForgetReader,
    page: PageByMoment,
    state: RequestState | None = None,
    model: str | None = None,
    external_id: ExternalId | None = None,
) -> Page[ForgetAnswer]:
    """List requests, newest first.

    An ``external_id`` finds the requests that any caller sent under it, and each part of one in all
    datasets; it is recognised, but never stored or shown.
    """
    with services.database.transaction() as session:
        keys = None
        if external_id is not None:
            keys = external_keys(session, services.pseudonyms, external_id)
        rows = repository.requests(
            session,
            state=state,
            model=model,
            external_keys=keys,
            after=page.after,
            limit=page.limit + 1,
        )
        rows, next_cursor = page.cut(rows, lambda row: (row.received_at, row.id))
        views = request_views.read(session, [row.id for row in rows])
        return Page(
            items=[answer_of(services, view) for view in views.values()], next_cursor=next_cursor
        )


@router.get("/{request_id}", **answers(404), response_model=ForgetAnswer)
async def get_forget_request(
    request_id: str,
    request: Request,
    services: ServicesOf,
    polls: Annotated[Polls, part("polls")],
    caller: ForgetReader,
    prefer: Prefer = None,
) -> Response:
    """Show one request; with ``Prefer: wait=N``, as soon as its state has changed."""
    if wait_of(prefer) is None:
        return json_response(answer_of(services, await polls.read(request_id)))

    def read(session: Session) -> Found:
        view = request_views.one(session, request_id)
        return Found(view.id, answer_of(services, view), is_final=view.state in _ENDED)

    return await answer_with_news(request, caller, Kind.FORGET_REQUEST, read, prefer=prefer)


@router.delete("/{request_id}", **answers(404, 409))
def cancel_forget_request(request_id: str, services: ServicesOf, _: ForgetWriter) -> ForgetAnswer:
    """Cancel a request that no run has started on.

    Its records stay forgotten, and the models that learned from them still owe a certificate for
    it. Pushed again, they are new records, which later trainings learn from.
    """
    with services.database.transaction() as session:
        services.forget_requests.cancel(session, request_id)
        session.flush()
        return answer_of(services, request_views.one(session, request_id))


@router.post(
    "/{request_id}/retry", **answers(404, 409, status=202, headers=("Location", "Retry-After"))
)
def retry_forget_request(
    request_id: str, services: ServicesOf, _: ForgetWriter, response: Response
) -> ForgetAnswer:
    """Give the obligations of a request that failed another run."""
    with services.database.transaction() as session:
        row = services.forget_requests.retry(session, request_id)
        session.flush()
        response.headers["Location"] = f"/v1/forget-requests/{row.id}"
        response.headers["Retry-After"] = RETRY_AFTER_S
        return answer_of(services, request_views.one(session, row.id))


@router.get("/{request_id}/certificates", **answers(404), response_model_exclude_none=True)
def list_forget_request_certificates(
    request_id: str, services: ServicesOf, _: ForgetReader, since: Since = None
) -> list[CertificateOfObligation]:
    """Return the certificate of each obligation that has one, for use with the receipt."""
    with services.database.transaction() as session:
        repository.request(session, request_id)
        return [
            CertificateOfObligation(
                model=session.get_one(ModelRow, obligation.model_id).name,
                certificate=obligation.certificate_id,
                bundle=bundle_answer(
                    services,
                    session,
                    issuing.certificate(session, obligation.certificate_id),
                    since=since,
                    request_id=request_id,
                ),
            )
            for obligation in repository.obligations_of_request(session, request_id)
            if obligation.certificate_id is not None
        ]


def answer_of(
    services: Services, view: RequestView, *, external_id: str | None = None
) -> ForgetAnswer:
    """Return a request as it is shown."""
    salt = base64.b64encode(services.forget_requests.receipt_salt(view.id)).decode()
    certified = any(owed.certificate is not None for owed in view.obligations)
    return ForgetAnswer.of(
        view,
        external_id=external_id,
        receipt_salt=salt,
        certificates=f"/v1/forget-requests/{view.id}/certificates" if certified else None,
    )

"""``/v1/forget-requests``."""

import base64
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field, StringConstraints
from sqlalchemy.orm import Session

from app.api.certificates import BundleAnswer, Since
from app.api.forgetting import ForgettingOf
from app.api.protocol.access import ForgetReader, ForgetWriter, GuardedRoute, ServicesOf
from app.api.protocol.changes import Kind
from app.api.protocol.cursors import DEFAULT_LIMIT, Cursor, Limit, cut, decode_cursor, encode_cursor
from app.api.protocol.errors import problem_responses
from app.api.protocol.headers import answer_headers
from app.api.protocol.idempotency import CallId
from app.api.protocol.schemas import Answer, Body, ExternalId, Name, OwnerId
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response, wait_of
from app.api.protocol.watching import WatcherOf
from app.callbacks.urls import MAX_URL_LENGTH, MAX_URLS
from app.domain.errors import NotFoundError
from app.domain.states import RequestState
from app.ledger import bundles, repository, request_views
from app.ledger.demands import Call, ForgetDemand
from app.ledger.request_views import RequestView
from app.ledger.requests import ForgetRequests
from app.log import actor
from app.registry.tables import ModelRow

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
_RETRY_AFTER_S = "2"
_MAX_IDS = 100_000
_ENDED = (RequestState.COMPLETED, RequestState.FAILED, RequestState.CANCELLED)
CallbackUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_URL_LENGTH),
    Field(json_schema_extra={"format": "uri"}),
]


class ForgetBody(Body):
    """Who or what must be forgotten."""

    dataset: Name = Field(examples=["digits"])
    record_ids: list[OwnerId] = Field(default_factory=list, max_length=_MAX_IDS, fail_fast=True)
    subject_ids: list[OwnerId] = Field(
        default_factory=list, max_length=_MAX_IDS, fail_fast=True, examples=[["person-0017"]]
    )
    external_id: ExternalId | None = Field(default=None, examples=["ticket-4711"])
    status_callback_urls: list[CallbackUrl] = Field(
        default_factory=list,
        max_length=MAX_URLS,
        description="Receive every change of the request's state; see docs/callbacks.md.",
        examples=[["https://privacy.example/expunge"]],
    )


class ObligationAnswer(Answer):
    """What the request is owed by one model."""

    model: str
    state: str
    basis: str
    run: str | None
    certificate: str | None
    failure_reason: str | None


class ForgetAnswer(Answer):
    """A forget request. With ``receipt_salt`` its sender can show that it was covered."""

    id: str
    external_id: str | None = Field(
        description="Only in the answer to the call that sent it, else null: it is not stored. "
        "List requests by it instead."
    )
    dataset: str
    state: str
    records: int
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    failure_reason: str | None
    receipt_salt: str
    obligations: list[ObligationAnswer]


class ForgetPage(Answer):
    """A page of requests, newest first."""

    items: list[ForgetAnswer]
    next_cursor: str | None


class CertificateOfObligation(Answer):
    """A model's certificate for this request."""

    model: str
    certificate: str
    bundle: BundleAnswer


@router.post(
    "",
    status_code=202,
    response_model=ForgetAnswer,
    responses=problem_responses(404, 422) | answer_headers(202, "Location", "Retry-After"),
)
async def submit(
    body: ForgetBody,
    services: ServicesOf,
    forgetting: ForgettingOf,
    caller: ForgetWriter,
    call_id: CallId,
) -> Response:
    """Ask that records or subjects be forgotten by every model trained on their dataset."""
    demand = ForgetDemand(
        dataset=body.dataset,
        record_ids=body.record_ids,
        subject_ids=body.subject_ids,
        external_id=body.external_id,
        idempotency_key=call_id,
        status_callback_urls=body.status_callback_urls,
    )
    view = await forgetting.submit(Call(demand, caller.key_id, actor.current()))
    response = json_response(
        _answer(services.forget_requests, view, external_id=body.external_id), 202
    )
    response.headers["Location"] = f"/v1/forget-requests/{view.id}"
    response.headers["Retry-After"] = _RETRY_AFTER_S
    return response


@router.get("", responses=problem_responses(422))
def list_requests(
    services: ServicesOf,
    _: ForgetReader,
    state: RequestState | None = None,
    model: str | None = None,
    external_id: ExternalId | None = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> ForgetPage:
    """List requests, newest first; an ``external_id`` is recognised, but never stored or shown."""
    receipts = services.forget_requests
    external_key = receipts.external_key(external_id)
    after = decode_cursor(cursor)
    with services.database.transaction() as session:
        rows = repository.requests(
            session,
            state=state,
            model=model,
            external_key=external_key,
            after=after,
            limit=limit + 1,
        )
        page, next_cursor = cut(rows, limit, lambda row: encode_cursor(row.received_at, row.id))
        views = request_views.read(session, [row.id for row in page])
        return ForgetPage(
            items=[_answer(receipts, views[row.id]) for row in page], next_cursor=next_cursor
        )


@router.get("/{request_id}", response_model=ForgetAnswer, responses=problem_responses(404))
async def get_request(
    request_id: str,
    request: Request,
    services: ServicesOf,
    forgetting: ForgettingOf,
    watcher: WatcherOf,
    _: ForgetReader,
    prefer: Prefer = None,
) -> Response:
    """Show one request; with ``Prefer: wait=N``, as soon as its state has changed."""
    receipts = services.forget_requests
    if wait_of(prefer) is None:
        return json_response(_answer(receipts, await forgetting.read(request_id)))

    def read(session: Session) -> Found:
        view = _view(session, request_id)
        return Found(view.id, _answer(receipts, view), is_final=view.state in _ENDED)

    return await answer_with_news(request, watcher, Kind.FORGET_REQUEST, read, prefer=prefer)


@router.delete("/{request_id}", responses=problem_responses(404, 409))
def cancel(
    request_id: str, services: ServicesOf, _: ForgetWriter, *, restore: bool = False
) -> ForgetAnswer:
    """Cancel a request that no run has started on.

    ``restore`` lets later trainings use its records again. For existing models they count as new
    records: models trained on them before leave them out from their next run on.
    """
    with services.database.transaction() as session:
        services.forget_requests.cancel(session, request_id, restore=restore)
        session.flush()
        return _answer(services.forget_requests, _view(session, request_id))


@router.post(
    "/{request_id}/retry",
    status_code=202,
    responses=problem_responses(404, 409) | answer_headers(202, "Location", "Retry-After"),
)
def retry(
    request_id: str, services: ServicesOf, _: ForgetWriter, response: Response
) -> ForgetAnswer:
    """Give a failed request another run."""
    with services.database.transaction() as session:
        row = services.forget_requests.retry(session, request_id)
        session.flush()
        response.headers["Location"] = f"/v1/forget-requests/{row.id}"
        response.headers["Retry-After"] = _RETRY_AFTER_S
        return _answer(services.forget_requests, _view(session, row.id))


@router.get(
    "/{request_id}/certificates",
    responses=problem_responses(404),
    response_model_exclude_none=True,
)
def get_certificates(
    request_id: str, services: ServicesOf, _: ForgetReader, since: Since = None
) -> list[CertificateOfObligation]:
    """Return the certificate of each obligation that has one, for use with the receipt."""
    with services.database.transaction() as session:
        repository.request(session, request_id)
        return [
            CertificateOfObligation(
                model=session.get_one(ModelRow, obligation.model_id).name,
                certificate=obligation.certificate_id,
                bundle=BundleAnswer(
                    **bundles.bundle_of(
                        session,
                        repository.certificate(session, obligation.certificate_id),
                        signer=services.signer,
                        witnesses=services.witnesses,
                        since=since,
                        request_id=request_id,
                    )
                ),
            )
            for obligation in repository.obligations_of_request(session, request_id)
            if obligation.certificate_id is not None
        ]


def _view(session: Session, request_id: str) -> RequestView:
    view = request_views.read(session, [request_id]).get(request_id)
    if view is None:
        raise NotFoundError("forget request", request_id)
    return view


def _answer(
    receipts: ForgetRequests, view: RequestView, *, external_id: str | None = None
) -> ForgetAnswer:
    return ForgetAnswer(
        id=view.id,
        external_id=external_id,
        dataset=view.dataset,
        state=view.state,
        records=view.records,
        received_at=view.received_at,
        due_at=view.due_at,
        completed_at=view.completed_at,
        failure_reason=view.failure_reason,
        receipt_salt=base64.b64encode(receipts.receipt_salt(view.id)).decode(),
        obligations=[ObligationAnswer(**vars(owed)) for owed in view.obligations],
    )

"""``/v1/forget-requests``."""

import base64
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field, StringConstraints
from sqlalchemy.orm import Session

from app.api.access import ForgetReader, ForgetWriter, GuardedRoute, ServicesOf
from app.api.certificates import BundleAnswer, Since
from app.api.cursors import decode_cursor, encode_cursor
from app.api.errors import problem_responses
from app.api.schemas import Answer, Body, ExternalId, Name, OwnerId
from app.callbacks.urls import MAX_URL_LENGTH, MAX_URLS
from app.domain.states import RequestState
from app.ledger import bundles, repository
from app.ledger.requests import ForgetDemand
from app.ledger.tables import ForgetRequestRow
from app.registry.tables import ModelRow

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
_RETRY_AFTER_S = "2"
_MAX_IDS = 100_000
CallbackUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_URL_LENGTH),
    Field(json_schema_extra={"format": "uri"}),
]


class ForgetBody(Body):
    """Who or what must be forgotten."""

    dataset: Name = Field(examples=["digits"])
    record_ids: list[OwnerId] = Field(default_factory=list, max_length=_MAX_IDS)
    subject_ids: list[OwnerId] = Field(
        default_factory=list, max_length=_MAX_IDS, examples=[["person-0017"]]
    )
    external_id: ExternalId | None = Field(default=None, examples=["ticket-4711"])
    status_callback_urls: list[CallbackUrl] = Field(
        default_factory=list,
        max_length=MAX_URLS,
        description="Told of every change of the request's state; see docs/callbacks.md.",
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
        description="As it came with this very request, null otherwise: it is not stored. "
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


@router.post("", status_code=202, responses=problem_responses(404, 422))
def submit(
    body: ForgetBody,
    services: ServicesOf,
    caller: ForgetWriter,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> ForgetAnswer:
    """Ask that records or subjects be forgotten by every model trained on their dataset."""
    demand = ForgetDemand(
        dataset=body.dataset,
        record_ids=body.record_ids,
        subject_ids=body.subject_ids,
        external_id=body.external_id,
        idempotency_key=idempotency_key,
        status_callback_urls=body.status_callback_urls,
    )
    with services.database.transaction() as session:
        row, _ = services.forget_requests.submit(session, demand, api_key_id=caller.key_id)
        request_id, settled = row.id, row.state == RequestState.CERTIFIED
    if settled:
        services.clean_up()
    response.headers["Location"] = f"/v1/forget-requests/{request_id}"
    response.headers["Retry-After"] = _RETRY_AFTER_S
    answer = get_request(request_id, services, caller)
    return answer.model_copy(update={"external_id": body.external_id})


@router.get("", responses=problem_responses(422))
def list_requests(
    services: ServicesOf,
    _: ForgetReader,
    state: RequestState | None = None,
    model: str | None = None,
    external_id: ExternalId | None = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> ForgetPage:
    """List requests, newest first; an ``external_id`` is recognised, but never stored or shown."""
    external_key = services.forget_requests.external_key(external_id)
    after = None if cursor is None else decode_cursor(cursor)
    with services.database.transaction() as session:
        rows = repository.requests(
            session,
            state=state,
            model=model,
            external_key=external_key,
            after=after,
            limit=limit + 1,
        )
        page = rows[:limit]
        more = len(rows) > limit
        return ForgetPage(
            items=[_answer(session, row) for row in page],
            next_cursor=encode_cursor(page[-1].received_at, page[-1].id) if more else None,
        )


@router.get("/{request_id}", responses=problem_responses(404))
def get_request(request_id: str, services: ServicesOf, _: ForgetReader) -> ForgetAnswer:
    """Show one request."""
    with services.database.transaction() as session:
        return _answer(session, repository.request(session, request_id))


@router.delete("/{request_id}", responses=problem_responses(404, 409))
def cancel(
    request_id: str, services: ServicesOf, _: ForgetWriter, *, restore: bool = False
) -> ForgetAnswer:
    """Cancel a request that no run has taken up; ``restore`` lets its records be used again."""
    with services.database.transaction() as session:
        row = services.forget_requests.cancel(session, request_id, restore=restore)
        return _answer(session, row)


@router.post("/{request_id}/retry", status_code=202, responses=problem_responses(404, 409))
def retry(request_id: str, services: ServicesOf, _: ForgetWriter) -> ForgetAnswer:
    """Give a failed request another run."""
    with services.database.transaction() as session:
        row = services.forget_requests.retry(session, request_id)
        return _answer(session, row)


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
                        since=since,
                        request_id=request_id,
                    )
                ),
            )
            for obligation in repository.obligations_of_request(session, request_id)
            if obligation.certificate_id is not None
        ]


def _answer(session: Session, row: ForgetRequestRow) -> ForgetAnswer:
    return ForgetAnswer(
        id=row.id,
        external_id=None,
        dataset=repository.dataset_of(session, row).name,
        state=row.state,
        records=row.record_count,
        received_at=row.received_at,
        due_at=row.due_at,
        completed_at=row.completed_at,
        failure_reason=row.failure_reason,
        receipt_salt=base64.b64encode(row.salt).decode(),
        obligations=[
            ObligationAnswer(
                model=session.get_one(ModelRow, obligation.model_id).name,
                state=obligation.state,
                basis=obligation.basis,
                run=obligation.run_id,
                certificate=obligation.certificate_id,
                failure_reason=obligation.failure_reason,
            )
            for obligation in repository.obligations_of_request(session, row.id)
        ],
    )

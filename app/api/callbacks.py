"""``/v1/callbacks`` and ``/v1/callback-secret``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import Field

from app.api.protocol.access import ForgetReader, ForgetWriter, GuardedRoute, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Page, PageByMoment
from app.delivery.callbacks import keys, repository
from app.delivery.callbacks.repository import EventState
from app.delivery.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.domain.states import RequestState

router = APIRouter(prefix="/v1", tags=["callbacks"], route_class=GuardedRoute)
webhooks = APIRouter(tags=["callbacks"])


class MessageLinks(Answer):
    """Links to more details, which need an API key."""

    request: str
    certificates: str


class MessageData(Answer):
    """The change."""

    request: str = Field(examples=["fr_5b0c0f6d7a1e4d7f9a3b2c1d0e9f8a7b"])
    state: RequestState
    received_at: datetime
    due_at: datetime
    sequence: int = Field(description="Counts the messages to this address from 1.")
    links: MessageLinks


class Message(Answer):
    """The message posted to a forget request's addresses."""

    type: str = Field(examples=["forget_request.completed"])
    timestamp: datetime
    data: MessageData


class MessageHeaders(Answer):
    """Standard Webhooks 1.0.0."""

    webhook_id: str
    webhook_timestamp: int
    webhook_signature: str


class CallbackAnswer(Answer):
    """An event for one address. The address itself is never shown."""

    id: str = Field(description="The webhook-id that the receiver sees.")
    type: str
    request: str | None = Field(
        description="The forget request; null for OpenDSR's requests and derivatives."
    )
    endpoint: str = Field(description="The id of the address.")
    sequence: int = Field(description="Counts the events for this address from 1.")
    state: EventState
    attempts: int
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    failure: str | None = Field(description="Why the last attempt failed.")
    redeliverable: bool = Field(description="Whether the address is still stored.")


class SecretAnswer(Answer):
    """The secret that signs the callbacks of the requests made with this API key."""

    secret: str = Field(examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    rotated_at: datetime | None
    previous_until: datetime | None = Field(
        description="Until then, callbacks are signed with the previous secret as well.",
    )


@webhooks.post(
    "forget_request",
    status_code=204,
    responses={
        "4XX": {"description": "Any 4xx or 5xx: the message is retried"},
        410: {"description": "No more messages are sent to this address"},
    },
)
def forget_request(message: Message, headers: Annotated[MessageHeaders, Header()]) -> None:
    """Receives every change of a request's state, signed. See docs/callbacks.md."""


@router.get("/callbacks", **answers())
def list_callbacks(
    services: ServicesOf,
    _: ForgetReader,
    page: PageByMoment,
    state: EventState | None = None,
    request: str | None = None,
) -> Page[CallbackAnswer]:
    """List callbacks, newest first; ``state=dead`` lists those that were given up."""
    with services.database.transaction() as session:
        rows = repository.events(
            session, state=state, request_id=request, after=page.after, limit=page.limit + 1
        )
        return page.answer(
            rows, lambda row: (row[0].created_at, row[0].id), lambda row: _answer(*row)
        )


@router.post("/callbacks/{callback_id}/redeliver", **answers(404, 410, status=202))
def redeliver_callback(callback_id: str, services: ServicesOf, _: ForgetWriter) -> CallbackAnswer:
    """Deliver a callback now, whatever its state."""
    with services.database.transaction() as session:
        return _answer(*repository.redeliver(session, callback_id))


@router.get("/callback-secret", **answers())
def get_callback_secret(
    services: ServicesOf, caller: ForgetWriter, response: Response
) -> SecretAnswer:
    """Show the secret that signs the callbacks of this API key."""
    response.headers["Cache-Control"] = "no-store"
    with services.database.transaction() as session:
        return SecretAnswer.of(keys.current(session, services.callbacks.keys, caller.key_id))


@router.post("/callback-secret/rotate", **answers())
def rotate_callback_secret(
    services: ServicesOf, caller: ForgetWriter, response: Response
) -> SecretAnswer:
    """Replace the secret; callbacks are signed with the previous one as well for a day."""
    response.headers["Cache-Control"] = "no-store"
    with services.database.transaction() as session:
        return SecretAnswer.of(keys.rotate(session, services.callbacks.keys, caller.key_id))


def _answer(event: CallbackEventRow, endpoint: CallbackEndpointRow) -> CallbackAnswer:
    return CallbackAnswer.of(
        event,
        request=endpoint.request_id,
        endpoint=endpoint.id,
        redeliverable=endpoint.url is not None,
    )

"""``/v1/forget-requests/{request_id}/…``: what a person decides on a request."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.forget_requests import ForgetAnswer, ForgettingOf, answer_of, changed
from app.api.protocol.access import ForgetWriter, GuardedRoute, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Body
from app.domain.states import Ground
from app.ledger import decisions

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)


PersonsText = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=2000, pattern=r"^[^\x00]+$"),
]


class RefusalBody(Body):
    """Why a request is refused."""

    ground: Annotated[Ground, Field(strict=False)] = Field(
        description="A paragraph of GDPR Art. 17(3), or `other`, with an explanation."
    )
    explanation: PersonsText | None = Field(
        default=None, description="For the person; the log has only a digest that binds it."
    )


class ExtensionBody(Body):
    """Why the deadline of a request is extended."""

    reason: PersonsText = Field(
        description="For the person; the log has only a digest that binds it."
    )


@router.post("/{request_id}/accept", **answers(404, 409))
def accept_forget_request(
    request_id: str, services: ServicesOf, forgetting: ForgettingOf, _: ForgetWriter
) -> ForgetAnswer:
    """Accept a request that was held: its records are forgotten from now on.

    Accepting it again changes nothing.
    """
    return answer_of(services, forgetting.accept_held(request_id))


@router.post("/{request_id}/refuse", **answers(404, 409))
def refuse_forget_request(
    request_id: str, body: RefusalBody, services: ServicesOf, _: ForgetWriter
) -> ForgetAnswer:
    """Refuse a request that was held. Nothing was forgotten for it; it can be reopened."""
    return changed(
        services,
        request_id,
        partial(decisions.refuse, ground=body.ground, explanation=body.explanation),
    )


@router.post("/{request_id}/reopen", **answers(404, 409))
def reopen_forget_request(request_id: str, services: ServicesOf, _: ForgetWriter) -> ForgetAnswer:
    """Let a refused request be decided on again, with the deadline that it had."""
    return changed(services, request_id, decisions.reopen)


@router.post("/{request_id}/extend", **answers(404, 409))
def extend_forget_request(
    request_id: str, body: ExtensionBody, services: ServicesOf, _: ForgetWriter
) -> ForgetAnswer:
    """Extend the deadline by two months (GDPR Art. 12(3)): once, and before it has passed."""
    return changed(services, request_id, partial(decisions.extend, reason=body.reason))

"""``/v1/models/{name}/derivatives``: models that others made of a downloaded version."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from app.api.forget_requests import CallbackUrl
from app.api.protocol.access import ForgetWriter, GuardedRoute, ModelsReader, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name
from app.delivery import derivatives
from app.delivery.derivatives import DerivativeRow
from app.registry import repository as registry
from app.services import Services

router = APIRouter(
    prefix="/v1/models/{name}/derivatives", tags=["models"], route_class=GuardedRoute
)
Words = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00]+$")]


class DerivativeBody(Body):
    """A model that was fine-tuned or distilled from a version."""

    name: Name = Field(examples=["support-bot"])
    version: int = Field(description="The version that it was made of.", ge=1, examples=[3])
    contact: Words = Field(description="Whom to ask about it.", examples=["ml@shop.example"])
    callback: CallbackUrl = Field(description="Where its team is told, once: see docs/callbacks.md")


class AcknowledgementBody(Body):
    """What a team did."""

    answer: Words = Field(examples=["trained anew from version 4"])


class DerivativeAnswer(Answer):
    """A model made of a version; the callback's address is never shown."""

    id: str = Field(examples=["der_5b0c0f6d7a1e4d7f9a3b2c1d0e9f8a7b"])
    name: str
    version: int
    contact: str
    created_at: datetime
    told_at: datetime | None = Field(description="When its version was withdrawn, and it was told.")
    acknowledged_at: datetime | None
    answer: str | None


@router.get("", **answers(404))
def list_derivatives(name: str, services: ServicesOf, _: ModelsReader) -> list[DerivativeAnswer]:
    """List what was made of a model's versions, and who was told and has answered."""
    with services.database.snapshot() as session:
        model = registry.model_named(session, name)
        return [_shown(services, *each) for each in derivatives.of_model(session, model.id)]


@router.post("", **answers(404, 409, status=201))
def register_derivative(
    name: str, body: DerivativeBody, services: ServicesOf, caller: ForgetWriter
) -> DerivativeAnswer:
    """Register a model made of a version: its team is told when that version is withdrawn.

    The callback is signed with the secret of the key that registers it.
    """
    with services.database.transaction() as session:
        model = registry.model_named(session, name, lock=True)
        row = derivatives.register(
            session,
            services.callbacks,
            model,
            registry.version_numbered(session, model, body.version),
            name=body.name,
            contact=body.contact,
            url=body.callback,
            api_key_id=caller.key_id,
        )
        return _shown(services, row, body.version)


@router.post("/{derivative_id}/acknowledge", **answers(404, 409))
def acknowledge_derivative(
    name: str, derivative_id: str, body: AcknowledgementBody, services: ServicesOf, _: ForgetWriter
) -> DerivativeAnswer:
    """Answer for a derivative that was told, once: what became of it."""
    with services.database.transaction() as session:
        model = registry.model_named(session, name)
        return _shown(
            services, *derivatives.acknowledge(session, model, derivative_id, body.answer)
        )


def _shown(services: Services, row: DerivativeRow, number: int) -> DerivativeAnswer:
    contact = services.callbacks.keys.decrypt(row.contact, endpoint_id=row.id)
    return DerivativeAnswer.of(row, version=number, contact=contact)

"""``/v1/api-keys``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.access import Admin, ServicesOf
from app.api.errors import problem_responses
from app.api.schemas import Answer, Body, Name
from app.ledger import api_keys
from app.ledger.api_keys import Scope
from app.ledger.tables import ApiKeyRow

router = APIRouter(prefix="/v1/api-keys", tags=["API keys"])


class KeyBody(Body):
    """A new key."""

    name: Name = Field(examples=["privacy-desk"])
    # JSON has neither sets nor enumerations, so these two are read from lists and texts.
    scopes: set[Annotated[Scope, Field(strict=False)]] = Field(
        min_length=1, examples=[["forget:write", "forget:read"]], strict=False
    )


class KeyAnswer(Answer):
    """A key without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_at: datetime
    revoked_at: datetime | None


class NewKeyAnswer(KeyAnswer):
    """A new key with its secret, which is shown this once."""

    secret: str


@router.post("", status_code=201, responses=problem_responses(422))
def create_key(body: KeyBody, services: ServicesOf, _: Admin) -> NewKeyAnswer:
    """Create a key."""
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(session, name=body.name, scopes=body.scopes)
        return NewKeyAnswer(**_answer(row).model_dump(), secret=secret)


@router.get("", responses=problem_responses())
def list_keys(services: ServicesOf, _: Admin) -> list[KeyAnswer]:
    """List all keys."""
    with services.database.transaction() as session:
        return [_answer(row) for row in api_keys.keys(session)]


@router.delete("/{key_id}", status_code=204, responses=problem_responses(404))
def revoke_key(key_id: str, services: ServicesOf, _: Admin) -> None:
    """Revoke a key at once."""
    with services.database.transaction() as session:
        api_keys.revoke(session, key_id)


def _answer(row: ApiKeyRow) -> KeyAnswer:
    return KeyAnswer(**{name: getattr(row, name) for name in KeyAnswer.model_fields})

"""``/v1/api-keys``."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import AwareDatetime, Field

from app.access import api_keys
from app.api.protocol.access import Admin, GuardedRoute, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name, Page, PageByMoment
from app.domain.states import Scope

router = APIRouter(prefix="/v1/api-keys", tags=["API keys"], route_class=GuardedRoute)


class KeyBody(Body):
    """A new key."""

    name: Name = Field(examples=["privacy-desk"])
    # JSON has neither enumerations nor timestamps, so these are parsed from text.
    scopes: list[Annotated[Scope, Field(strict=False)]] = Field(
        min_length=1, max_length=100, examples=[["forget:write", "forget:read"]]
    )
    expires_at: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        default=None,
        description="When the key expires; never, if omitted",
        examples=["2100-01-01T00:00:00Z"],
    )


class KeyAnswer(Answer):
    """A caller: an API key, shown without its secret, or a subject of an issuer's tokens.

    ``last_used_at`` lags by at most a minute. A token's permissions are in the token itself.
    """

    id: str
    kind: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewKeyAnswer(KeyAnswer):
    """A new key with its secret, which is shown only once."""

    secret: str


@router.post("", **answers(status=201))
def create_api_key(body: KeyBody, services: ServicesOf, _: Admin) -> NewKeyAnswer:
    """Create a key."""
    with services.database.transaction() as session:
        row, secret = api_keys.create_key(
            session, name=body.name, scopes=body.scopes, expires_at=body.expires_at
        )
        return NewKeyAnswer.of(row, secret=secret)


@router.get("", **answers())
def list_api_keys(services: ServicesOf, _: Admin, page: PageByMoment) -> Page[KeyAnswer]:
    """List all callers, newest first: API keys, and subjects seen with tokens."""
    with services.database.transaction() as session:
        rows = api_keys.keys(session, after=page.after, limit=page.limit + 1)
        return page.answer(rows, lambda row: (row.created_at, row.id), KeyAnswer.of)


@router.delete("/{key_id}", **answers(404, status=204))
def revoke_api_key(key_id: str, services: ServicesOf, _: Admin) -> None:
    """Revoke a key or block a caller's tokens, effective immediately."""
    with services.database.transaction() as session:
        api_keys.revoke(session, key_id)

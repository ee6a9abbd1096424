"""Commands about API keys, over HTTP."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from app.cli.connection import service, show_answer
from app.cli.options import argument, option
from app.cli.output import show
from app.domain.errors import InvalidInputError

api_key = typer.Typer(help="Manage API keys and callers.", no_args_is_help=True)

_KEYS = ("id", "name", "kind", "scopes", "expires_at", "last_used_at", "revoked_at")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@api_key.command()
def create(
    name: Annotated[str, argument("NAME", "The key's purpose.")],
    scope: Annotated[
        list[str], option("A permission, such as forget:write; may be repeated.", "--scope")
    ],
    *,
    expires_in: Annotated[str | None, option("Lifetime from now: 90d, 12h or 30m.")] = None,
    expires_at: Annotated[
        str | None, option("Expiry: an ISO date (its beginning) or time, in UTC.")
    ] = None,
) -> None:
    """Create an API key. Its secret is shown only once."""
    with service() as client:
        end = _end(expires_in, expires_at)
        show(client.create_key(name, scope, expires_at=end))


@api_key.command("list")
def list_keys() -> None:
    """List all keys and callers with their scopes, expiry and last use."""
    show_answer(lambda client: client.keys(), _KEYS)


@api_key.command()
def revoke(
    key_id: Annotated[str, argument("ID", "The key's or caller's id, as listed.")],
) -> None:
    """Revoke the key with this ID, or block a caller's tokens, immediately."""
    with service() as client:
        client.revoke_key(key_id)


def _end(expires_in: str | None, expires_at: str | None) -> datetime | None:
    if expires_in is not None and expires_at is not None:
        raise InvalidInputError("give either --expires-in or --expires-at")
    if expires_in is not None:
        return datetime.now(UTC) + _span(expires_in)
    if expires_at is not None:
        return _moment(expires_at)
    return None


def _span(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9]\d{0,4})([dhm])", text, re.ASCII)
    if match is None:
        raise InvalidInputError("--expires-in is a number with a unit: 90d, 12h or 30m")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError("--expires-at is an ISO date or time: 2030-12-31") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

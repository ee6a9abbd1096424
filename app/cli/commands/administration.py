"""Commands over HTTP: API keys, callbacks, runs, the transparency log, and who did what."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from app.cli.connection import service, show_answer
from app.cli.options import argument, option
from app.cli.output import conclude, say, show
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
        match = re.fullmatch(r"([1-9]\d{0,4})([dhm])", expires_in, re.ASCII)
        if match is None:
            raise InvalidInputError("--expires-in is a number with a unit: 90d, 12h or 30m")
        return datetime.now(UTC) + timedelta(**{_UNITS[match[2]]: int(match[1])})
    if expires_at is not None:
        try:
            moment = datetime.fromisoformat(expires_at)
        except ValueError as error:
            raise InvalidInputError("--expires-at is an ISO date or time: 2030-12-31") from error
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None


_CALLBACKS = ("id", "type", "request", "state", "attempts", "failure")
callback = typer.Typer(help="Manage callbacks.", no_args_is_help=True)


@callback.command("list")
def list_callbacks(
    *,
    state: Annotated[str | None, option("Only this state: pending, delivered or dead.")] = None,
    request: Annotated[str | None, option("Only this forget request.")] = None,
) -> None:
    """List callbacks, newest first. Dead ones were given up after the last attempt."""
    show_answer(lambda client: client.callbacks(state=state, request=request), _CALLBACKS)


@callback.command()
def redeliver(
    callback_id: Annotated[str, argument("CALLBACK", "Its id, as listed.")],
) -> None:
    """Deliver a callback now, whatever its state."""
    show_answer(lambda client: client.redeliver(callback_id))


@callback.command()
def secret(*, rotate: Annotated[bool, option("Replace it first.", "--rotate")] = False) -> None:
    """Show the secret that signs the callbacks of this API key."""
    show_answer(
        lambda client: client.rotate_callback_secret() if rotate else client.callback_secret()
    )


run = typer.Typer(help="List, show, cancel and retry runs.", no_args_is_help=True)

_RUNS = ("id", "model", "kind", "state", "phase", "epsilon", "created_at", "failure_reason")
RunId = Annotated[str, argument("RUN", "The run's id.")]


@run.command("list")
def list_runs(
    *,
    state: Annotated[
        str | None,
        option("Only this state: queued, leased, running, published, failed or cancelled."),
    ] = None,
    model: Annotated[str | None, option("Only this model.")] = None,
) -> None:
    """List runs, newest first."""
    show_answer(lambda client: client.runs(state=state, model=model), _RUNS)


@run.command("show")
def show_run(run_id: RunId) -> None:
    """Show a run: its plan, its progress, and why it failed."""
    show_answer(lambda client: client.run(run_id))


@run.command("cancel")
def cancel_run(run_id: RunId) -> None:
    """Cancel a queued or active run; its obligations wait for the model's next run."""
    show_answer(lambda client: client.cancel_run(run_id))


@run.command("retry")
def retry_run(run_id: RunId) -> None:
    """Start a new run like a failed or cancelled one."""
    show_answer(lambda client: client.retry_run(run_id))


log = typer.Typer(help="The transparency log.", no_args_is_help=True)


@log.command()
def checkpoint() -> None:
    """Print the newest signed checkpoint: keep it to prove later that nothing was rewritten."""
    with service() as client:
        note = client.log_checkpoint()
    say(note, nl=False)
    conclude({"checkpoint": note})


@log.command()
def trail(
    *,
    caller: Annotated[
        str | None, option("Only this caller: a key's id, 'operator' or 'service'.")
    ] = None,
    kind: Annotated[str | None, option("Only this kind, such as request.accepted.")] = None,
    limit: Annotated[int, option("The most entries to show.", min=1)] = 50,
) -> None:
    """Show who did what, newest first: the log's entries with the callers behind them."""
    with service() as client:
        entries = list(client.audit(caller=caller, kind=kind, limit=limit))
        for entry in entries:
            name = f" ({entry['name']})" if entry["name"] else ""
            facts = json.dumps(entry["facts"], sort_keys=True)
            say(f"{entry['recorded_at']}  {entry['by']}{name}  {entry['kind']}  {facts}")
        conclude(entries)

"""``--wait``: shows progress until a request or a model's run has ended."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from app.cli.options import option
from app.cli.output import fail, show
from app.client import ExpungeClient
from app.client.answers import Json
from app.domain.errors import InvalidInputError


@contextmanager
def _bar(*columns: ProgressColumn, **task: Any) -> Iterator[Callable[..., None]]:  # noqa: ANN401
    """Show a bar; yield what changes its fields."""
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        yield partial(progress.update, progress.add_task(**task))


@contextmanager
def run_progress() -> Iterator[Callable[[Mapping[str, Any] | None, str], None]]:
    """Show a bar; yield a function to call with the run and the overall state."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with _bar(*columns, description="waiting", total=None, note="") as change:

        def update(run: Mapping[str, Any] | None, state: str) -> None:
            if run is None:
                change(description=state)
                return
            # A model that is released without noise has no epsilon.
            known = [name for name in ("epsilon", "loss") if run[name] is not None]
            change(
                description=f"{state}: {run['phase'] or run['state']}",
                completed=run["step"] or 0,
                total=run["total_steps"],
                note=", ".join(f"{name} {run[name]:.4g}" for name in known),
            )

        yield update


@contextmanager
def rows_progress(rows: int, *, at_once: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for an upload of several parts; yield a function to call with rows sent."""
    if rows == at_once:
        yield lambda _: None
        return
    columns = (TextColumn("pushing"), BarColumn(), MofNCompleteColumn())
    with _bar(*columns, description="pushing", total=rows) as change:
        yield lambda sent: change(advance=sent)


@contextmanager
def import_progress() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar; yield a function to call with the import."""
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn())
    with _bar(*columns, description="queued", total=None) as change:
        yield lambda found: change(
            description=found["state"], completed=found["rows"], total=found["total_rows"]
        )


INTERRUPTED = 130
_WAIT_S = 24 * 3600.0
Wait = Annotated[
    bool, option("Show progress until it has ended; exit with 1 if it fails.", "--wait")
]


def show_model(client: ExpungeClient, shown: Json, *, wait: bool) -> None:
    """Show a model, once its newest run has ended if asked to wait."""
    awaits_weights = shown["weights"] == "upload" and shown["latest_run"] is None
    if wait and not awaits_weights:
        name = shown["name"]
        with _interruptible(shown, f"expunge model show {name} --wait"), run_progress() as update:
            shown = _waited(client, name, update)
    show(shown)
    for warning in shown["warnings"]:
        fail(f"version {shown['certified']['number']}: {warning}")
    run = shown["latest_run"]
    if wait and awaits_weights:
        name = shown["name"]
        fail(f"{name} waits for its weights: expunge model upload {name} FILE")
    if wait and run is not None:
        _require_success(run)


def wait_for_version(client: ExpungeClient, name: str) -> Json:
    """Show progress until a model's newest run has ended; return the model, if it succeeded."""
    with run_progress() as update:
        model = _waited(client, name, update)
    _require_success(model["latest_run"])
    return model


def _waited(client: ExpungeClient, name: str, update: Callable[..., None]) -> Json:
    return client.wait_for_model(
        name, timeout_s=_WAIT_S, on_change=lambda run: update(run, run["kind"])
    )


def _require_success(run: Json) -> None:
    if run["state"] in ("failed", "cancelled"):
        raise InvalidInputError(f"the run {run['state']}: {run['failure_reason'] or 'retry it'}")


def show_request(client: ExpungeClient, shown: Json, *, wait: bool) -> None:
    """Show a forget request, or one everywhere; once it has ended if asked to wait."""
    parts = shown.get("requests", [shown])
    if wait:
        parts = [_ended(client, part) for part in parts]
    show({"requests": parts} if "requests" in shown else parts[0])
    for part in parts:
        if part["state"] in ("certified", "completed") and sys.stderr.isatty():
            typer.echo(f"its certificates: expunge certificates {part['id']}", err=True)
        if wait and part["state"] == "failed":
            raise InvalidInputError(f"the request failed: {part['failure_reason']}")
        if wait and part["state"] == "cancelled":
            raise InvalidInputError("the request was cancelled: no model forgot anything for it")
        if wait and part["state"] == "refused":
            raise InvalidInputError(f"the request was refused: {part['ground']}")


def _ended(client: ExpungeClient, request: Json) -> Json:
    again = f"expunge status {request['id']} --wait"
    with _interruptible(request, again), run_progress() as update:
        return client.wait_for_request(
            request["id"],
            timeout_s=_WAIT_S,
            on_change=lambda request, run: update(run, request["state"]),
        )


def show_import(client: ExpungeClient, shown: Json, *, wait: bool) -> None:
    """Show an import, once it has ended if asked to wait."""
    if wait:
        name, import_id = shown["dataset"], shown["id"]
        again = f"expunge dataset imports {name} {import_id} --wait"
        with _interruptible(shown, again), import_progress() as update:
            shown = client.wait_for_import(name, import_id, timeout_s=_WAIT_S, on_change=update)
    show(shown)
    if wait and shown["state"] != "completed":
        raise InvalidInputError(
            f"the import {shown['state']}: {shown['failure_reason'] or 'retry it'}"
        )


@contextmanager
def _interruptible(known: Json, again: str) -> Iterator[None]:
    """On Ctrl-C, show what was known when waiting began, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as error:
        show(known)
        fail(f"no longer waiting; the service goes on. To wait again: {again}")
        raise typer.Exit(INTERRUPTED) from error

"""The ``expunge`` command line: its commands and help panels."""

from importlib.metadata import version
from typing import Annotated

import typer

from app.cli.lazy import Listed, lazy_group
from app.cli.options import option
from app.domain.extras import SERVER, TABLES, TORCH
from app.runtime import logs
from app.runtime.processes.hardening import harden

_EPILOG = """Exit codes:

0  done

1  failed, or a check found a fault; one line on standard error says why

2  invalid command line

130  Ctrl-C; what was sent goes on without it

Answers are tables on a terminal and JSON elsewhere; with --json a command prints nothing but JSON \
on standard output.

Settings are environment variables EXPUNGE_…, or files of the same names in EXPUNGE_SECRETS_DIR; \
the documentation lists them. EXPUNGE_API_URL and EXPUNGE_API_KEY select the service: by default \
the one with its data directory (EXPUNGE_DATA_DIR, .expunge) here."""

# By panel of the help: modules in `commands`, with the names of their commands and groups.
_COMMANDS = {
    "Run the service": "starting: start; service: up down init serve worker dispatcher demo",
    "Forget": "forgetting: forget status requests accept refuse reopen extend retry cancel "
    "certificates; checks: erase_check",
    "Use and verify": "resources: download recompute_kit dossier; verification: verify; "
    "auditing: audit verify_audit; prediction: predict",
    "Plan": "guarantees: plan account",
    "Administer": "maintenance: reconcile; "
    "administration: api_key callback; maintenance: signing_key; administration: log; "
    "checks: storage",
    "Data and models": "resources: dataset backbone model; administration: run",
}
_WITHIN_GROUPS = {
    "dataset": "datasets: push; resources: import_ imports cancel_import retry_import; "
    "datasets: columns create alter",
    "backbone": "networks: add",
    "model": "definitions: create; networks: check; prediction: export",
    "log": "checks: fsck",
}
_EXTRAS = {"auditing": TORCH, "datasets": TABLES}
"""What a module's commands need; the service's extra by default."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"expunge {version('expunge')}")
        raise typer.Exit


def _root(
    *,
    _: Annotated[
        bool,
        option("Show the version and exit.", "--version", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Makes trained PyTorch models forget, with proof."""


def _listed(commands: str, panel: str | None = None) -> tuple[Listed, ...]:
    modules = (each.partition(": ") for each in commands.split("; ") if each)
    return tuple(
        Listed(
            module=module,
            name=name,
            extra=_EXTRAS.get(module, SERVER),
            panel=panel,
            within=_listed(_WITHIN_GROUPS.get(name, "")),
        )
        for module, _, names in modules
        for name in names.split()
    )


def _assembled() -> typer.Typer:
    members = (
        member for panel, commands in _COMMANDS.items() for member in _listed(commands, panel)
    )
    app = typer.Typer(
        name="expunge",
        cls=lazy_group(tuple(members)),
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    return app


app = _assembled()


def main() -> None:
    """Run the command line."""
    harden()
    logs.configure()
    app()

"""The ``expunge`` command line: its commands and help panels."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated

import typer

from app import logs
from app.cli.lazy import Listed, lazy_group
from app.domain.extras import SERVER, TABLES
from app.processes.hardening import harden

_EPILOG = """Exit codes:

0  done

1  failed, or a check found a fault; one line on standard error says why

2  invalid command line

130  Ctrl-C; what was sent goes on without it

Answers are tables on a terminal and JSON elsewhere; with --json a command prints nothing but JSON \
on standard output.

Settings are environment variables EXPUNGE_…, or files of the same names in EXPUNGE_SECRETS_DIR; \
see docs/settings.md. EXPUNGE_API_URL and EXPUNGE_API_KEY select the service: by default the one \
with its data directory (EXPUNGE_DATA_DIR, .expunge) here."""

# By panel of the help: module in `commands` and name, and the first paragraph of a command's help.
_COMMANDS: dict[str, dict[str, str]] = {
    "Run the service": {
        "service init": "Create the data directory, its keys and the database's "
        "tables. Safe to repeat.",
        "service up": "Run everything on this machine: embedded servers, API, "
        "dispatcher and worker.",
        "service serve": "Run only the API, at EXPUNGE_HOST and EXPUNGE_PORT.",
        "service worker": "Run a worker and a dispatcher.",
        "service dispatcher": "Run only a dispatcher; several may run.",
        "service demo": "Run the main job end to end on real data, in a fresh temporary "
        "data directory.",
    },
    "Forget": {
        "forgetting forget": "Ask every model trained on DATASET to forget records or subjects.",
        "forgetting status": "Show a forget request; with --wait, its live epsilon until "
        "it has ended.",
        "forgetting requests": "List forget requests, newest first.",
        "forgetting retry": "Retry a failed request.",
        "forgetting cancel": "Cancel a request before any run has started on it.",
        "forgetting certificates": "Download a forget request's certificates, for use with "
        "its receipt.",
        "erasure erase_check": "Search every store for remains of an id; of several, given "
        "one a line, each by itself.",
    },
    "Use and verify": {
        "resources download": "Download and verify MODEL's current certified weights; "
        "resumes interrupted downloads.",
        "verification verify": "Check a certificate BUNDLE offline; on failure, name the "
        "failed step and exit with 1.",
        "prediction predict": "Predict each row of a table with a downloaded model.",
        "witnessing witness": "Cosign the checkpoints of logs that only grow (C2SP tlog-witness), "
        "until interrupted.",
    },
    "Plan": {
        "guarantees plan": "Quote every mechanism for a target: parameters, guarantee, "
        "cost, and surviving information.",
        "guarantees account": "Compute the guarantee of a mechanism, or of a paper's bound, "
        "with the given parameters.",
    },
    "Administer": {
        "audit audit": "Show who did what, newest first: the log's entries with "
        "the callers behind them.",
        "restoring reconcile": "After a restore: make the ledger match keys and objects. "
        "Stop the service first.",
        "api_keys api_key": "Manage API keys and callers.",
        "callbacks callback": "Manage callbacks.",
        "signing_keys signing_key": "The key that signs certificates.",
        "log log": "The transparency log.",
        "storage storage": "Stored objects and their keys.",
    },
    "Data and models": {
        "lifecycle dataset": "Define datasets and push records.",
        "lifecycle backbone": "Define public backbones and upload weights.",
        "lifecycle model": "Define models and upload weights.",
        "runs run": "List, show, cancel and retry runs.",
    },
}
_WITHIN_GROUPS: dict[str, dict[str, str]] = {
    "dataset": {
        "datasets push": "Push the records of FILE to DATASET, which is defined if it is new.",
        "imports import_": "Have the service read the Parquet files at URL into DATASET.",
        "imports imports": "List DATASET's imports, or show one and how far it is.",
        "imports cancel_import": "Cancel an import; what it has added stays.",
        "imports retry_import": "Let an import go on that failed or was cancelled.",
        "typed_datasets create": "Define DATASET as a table of typed columns.",
        "typed_datasets columns": "Show the types of FILE's columns; sends nothing.",
        "datasets inspect": "Show what 'dataset push' would understand of FILE; sends nothing.",
    },
    "backbone": {
        "backbones add": "Define BACKBONE and upload its weights.",
    },
    "model": {
        "networks check": "Try a network and a task of your own on made-up records, mechanism "
        "by mechanism.",
        "prediction export": "Write a downloaded model for another runtime: raw features "
        "in, the network's outputs out.",
    },
    "log": {
        "fsck fsck": "Check the whole log and every row of the ledger against "
        "it; exit with 1 on any fault.",
    },
}
_EXTRAS = {"datasets": TABLES, "typed_datasets": TABLES}
"""What a module's commands need; the service's extra by default."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"expunge {version('expunge')}")
        raise typer.Exit


def _root(
    *,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Makes trained PyTorch models forget, with proof."""


def _listed(commands: Mapping[str, str], panel: str | None = None) -> tuple[Listed, ...]:
    return tuple(
        Listed(
            module=module,
            name=name,
            summary=summary,
            extra=_EXTRAS.get(module, SERVER),
            panel=panel,
            within=_listed(_WITHIN_GROUPS.get(name, {})),
        )
        for (module, name), summary in (
            (each.split(), summary) for each, summary in commands.items()
        )
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

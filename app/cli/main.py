"""The ``expunge`` command line: its commands and help panels."""

from collections.abc import Callable

import typer
from typer.models import CommandInfo

from app import logs
from app.cli import (
    api_keys,
    audit,
    callbacks,
    erasure,
    guarantees,
    log,
    resources,
    restoring,
    runs,
    service,
    signing_keys,
    storage,
    verification,
    witnessing,
)
from app.cli.examples import epilog
from app.processes.hardening import harden

_EPILOG = """Exit codes:

0  done

1  failed, or a check found a fault; one line on standard error says why

2  invalid command line

Settings are environment variables EXPUNGE_…, or files of the same names in EXPUNGE_SECRETS_DIR; \
see docs/settings.md. EXPUNGE_API_URL and EXPUNGE_API_KEY select the service: by default the one \
with its data directory (EXPUNGE_DATA_DIR, .expunge) here."""

_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run the service": (
        service.init,
        service.up,
        service.serve,
        service.worker,
        service.dispatcher,
        service.demo,
    ),
    "Forget": (
        resources.forget,
        resources.status,
        resources.requests,
        resources.retry,
        resources.cancel,
        resources.certificates,
        erasure.erase_check,
    ),
    "Use and verify": (resources.download, verification.verify, witnessing.witness),
    "Plan": (guarantees.plan, guarantees.account),
    "Administer": (audit.audit, restoring.reconcile),
}
_GROUPS: dict[str, tuple[tuple[str, typer.Typer], ...]] = {
    "Data and models": (
        ("dataset", resources.dataset),
        ("backbone", resources.backbone),
        ("model", resources.model),
        ("run", runs.run),
    ),
    "Administer": (
        ("api-key", api_keys.api_key),
        ("callback", callbacks.callback),
        ("signing-key", signing_keys.signing_key),
        ("log", log.log),
        ("storage", storage.storage),
    ),
}


def _name(command: CommandInfo) -> str:
    if command.name is not None:
        return command.name
    return "" if command.callback is None else command.callback.__name__.replace("_", "-")


def _with_examples(commands: typer.Typer, prefix: str = "") -> None:
    for command in commands.registered_commands:
        command.epilog = epilog(prefix + _name(command))


def _assembled() -> typer.Typer:
    app = typer.Typer(
        name="expunge",
        help="Makes trained PyTorch models forget, with proof.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for panel, commands in _COMMANDS.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    _with_examples(app)
    for panel, groups in _GROUPS.items():
        for name, group in groups:
            _with_examples(group, f"{name} ")
            app.add_typer(group, name=name, rich_help_panel=panel)
    return app


app = _assembled()


def main() -> None:
    """Run the command line."""
    harden()
    logs.configure()
    app()

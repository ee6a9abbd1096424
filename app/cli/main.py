"""The commands' table of contents."""

import typer

from app import logs
from app.cli import (
    callbacks,
    erasure,
    guarantees,
    log,
    resources,
    service,
    signing_keys,
    verification,
)

app = typer.Typer(
    name="expunge",
    help="Makes trained PyTorch models forget, with proof.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(resources.dataset, name="dataset")
app.add_typer(resources.backbone, name="backbone")
app.add_typer(resources.model, name="model")
app.add_typer(resources.key, name="key")
app.add_typer(callbacks.callback, name="callback")
app.add_typer(log.log, name="log")
app.add_typer(signing_keys.signing_key, name="signing-key")
for command in (
    service.init,
    service.up,
    service.serve,
    service.worker,
    service.dispatcher,
    service.demo,
    resources.forget,
    resources.status,
    resources.requests,
    resources.retry,
    resources.cancel,
    resources.certificates,
    resources.download,
    erasure.erase_check,
    verification.verify,
    guarantees.plan,
    guarantees.account,
):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    logs.configure()
    app()

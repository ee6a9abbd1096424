"""Commands that set up and run the service on this machine."""

import os
import sys
from typing import Annotated

import typer
import uvicorn

from app import schema
from app.certificates.model_signing import ModelSigner
from app.certificates.signing import StatementSigner
from app.certificates.trusted_keys import remember_key
from app.cli.connection import admin_key_file, errors_in_words
from app.database import Database
from app.embedded import EmbeddedServers
from app.ledger import api_keys
from app.ledger.api_keys import Scope
from app.main import app_from_environment
from app.services import (
    create_keys,
    database_url,
    migration_url,
    model_signing_key_file,
    object_dir,
    open_blobs,
    public_key_file,
    signing_key_file,
)
from app.settings import Settings
from app.stopping import StopSignal
from app.storage.keyfiles import create_key_file
from app.storage.upgrade import encrypt_plain_files
from app.supervisor import Child, python_command, stop_with_supervisor, supervise


def init() -> None:
    """Create the data directory, its keys and the database's tables. Safe to repeat."""
    with errors_in_words():
        settings = Settings()
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        servers = _embedded(settings)
        if servers is not None and settings.database_url is None:
            servers.start_postgres()
        schema.upgrade(migration_url(settings), service_url=database_url(settings))
        create_keys(settings)
        public = public_key_file(settings)
        remember_key(public, StatementSigner.from_file(signing_key_file(settings)).public_key_pem)
        model_key = model_signing_key_file(settings)
        model_signer = ModelSigner.from_file(model_key)
        model_key.with_suffix(".pub").write_text(model_signer.public_key_pem)
        create_key_file(admin_key_file(settings), lambda: _new_admin_key(settings))
        _encrypt_old_objects(settings)
        typer.echo(f"ready: data in {settings.data_dir}, public key in {public}")


def up() -> None:
    """Run everything on this machine: embedded servers, API, dispatcher and worker."""
    stop = StopSignal().listen()
    settings = Settings()
    servers = _embedded(settings)

    def keep_up() -> None:
        if servers is None:
            return
        if settings.database_url is None and not servers.postgres_running():
            servers.start_postgres()
        if settings.redis_url is None and not servers.redis_running():
            servers.start_redis()

    with errors_in_words():
        try:
            init()
            keep_up()
            typer.echo(f"serving on http://{settings.host}:{settings.port} (Ctrl-C stops)")
            supervise([_api(), _dispatcher(), _worker()], stop, keep_up=keep_up)
        finally:
            if servers is not None:
                servers.stop()


def serve() -> None:
    """Run the API alone."""
    stop_with_supervisor()
    settings = Settings()
    with errors_in_words():
        app = app_from_environment()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
    )


def worker(
    *,
    with_dispatcher: Annotated[
        bool, typer.Option("--dispatcher/--no-dispatcher", help="Run a dispatcher beside it.")
    ] = True,
) -> None:
    """Run a worker, with a dispatcher beside it."""
    supervise([_worker(), _dispatcher()] if with_dispatcher else [_worker()], StopSignal().listen())


def dispatcher() -> None:
    """Run a dispatcher alone."""
    supervise([_dispatcher()], StopSignal().listen())


def demo() -> None:
    """Run the main job end to end on real data, in a fresh temporary data directory."""
    os.execv(sys.executable, python_command("workers", "demo"))  # noqa: S606 - a fixed command


def _api() -> Child:
    return Child("api", python_command("app.cli", "serve"))


def _dispatcher() -> Child:
    return Child("dispatcher", python_command("workers", "dispatcher"))


def _worker() -> Child:
    return Child("worker", python_command("workers", "worker"))


def _embedded(settings: Settings) -> EmbeddedServers | None:
    """Return the embedded servers unless both have been replaced by servers of one's own."""
    if settings.database_url is not None and settings.redis_url is not None:
        return None
    return EmbeddedServers(settings.data_dir)


def _encrypt_old_objects(settings: Settings) -> None:
    if settings.s3_bucket is not None:
        return
    database = Database(database_url(settings))
    count = encrypt_plain_files(database, open_blobs(settings, database), object_dir(settings))
    database.dispose()
    if count:
        typer.echo(f"{count} stored objects from before are encrypted now")


def _new_admin_key(settings: Settings) -> bytes:
    database = Database(database_url(settings))
    with database.transaction() as session:
        _, secret = api_keys.create_key(session, name="admin", scopes=[Scope.ADMIN])
    database.dispose()
    return secret.encode()

"""Commands that set up and run the service on this machine."""

import gc
import os
import resource
import sys
from types import FrameType
from typing import Annotated, Any

import typer
import uvicorn

from app import schema
from app.access import api_keys
from app.api.protocol.connections import Connections
from app.api.protocol.watching import Watcher
from app.certificates.model_signing import ModelSigner
from app.certificates.processor_signing import ensure_self_signed, load_processor_key
from app.cli.connection import admin_key_file, errors_in_words
from app.database import Database
from app.domain.scopes import Scope
from app.embedded import EmbeddedServers
from app.locations import (
    database_url,
    migration_url,
    model_signing_key_file,
    object_store,
    opendsr_certificate_file,
    opendsr_domain,
    opendsr_key_file,
    trusted_keys_file,
)
from app.log import actor, signing_keys
from app.main import app_from_environment
from app.planning.planners import Planners
from app.processes.stopping import StopSignal
from app.processes.supervisor import Child, python_command, stop_with_supervisor, supervise
from app.services import create_keys
from app.settings import Settings
from app.storage.keyfiles import create_key_file
from app.storage.s3 import S3ObjectStore
from app.trust_file import ensure_trusted_keys, require_same

_SHUTDOWN_S = 5


class _Server(uvicorn.Server):
    """A server that answers waiting calls before it stops."""

    def __init__(self, config: uvicorn.Config, watcher: Watcher, planners: Planners) -> None:
        super().__init__(config)
        self._watcher, self._planners = watcher, planners

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop taking calls, and end all waiting calls."""
        super().handle_exit(sig, frame)
        self._watcher.close()
        self._planners.close()


def init() -> None:
    """Create the data directory, its keys and the database's tables. Safe to repeat.

    Run it once, and again after each upgrade. 'expunge up' does it automatically.
    """
    with errors_in_words():
        settings = Settings()
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        servers = _embedded(settings)
        if servers is not None and settings.database_url is None:
            servers.start_postgres()
        schema.upgrade(migration_url(settings), service_url=database_url(settings))
        create_keys(settings)
        _set_up_opendsr(settings)
        model_key = model_signing_key_file(settings)
        model_signer = ModelSigner.from_file(model_key)
        model_key.with_suffix(".pub").write_text(model_signer.public_key_pem)
        create_key_file(admin_key_file(settings), lambda: _new_admin_key(settings))
        _create_bucket(settings)
        database = Database(database_url(settings))
        known = ensure_trusted_keys(settings, database)
        with database.transaction() as session:
            require_same(known, signing_keys.trusted(session))
        database.dispose()
        trusted = trusted_keys_file(settings)
        typer.echo(f"ready: data in {settings.data_dir}, trusted keys in {trusted}")


def up() -> None:
    """Run everything on this machine: embedded servers, API, dispatcher and worker.

    If EXPUNGE_DATABASE_URL and EXPUNGE_REDIS_URL are set, those servers replace the embedded ones.
    """
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
    """Run only the API, at EXPUNGE_HOST and EXPUNGE_PORT."""
    stop_with_supervisor()
    _allow_many_sockets()
    settings = Settings()
    with errors_in_words():
        app = app_from_environment()
    gc.freeze()  # a collection of all that is loaded would delay all calls by 0.1 s
    config = uvicorn.Config(app, **server_options(settings))
    _Server(config, app.state.watcher, app.state.services.planners).run()


def server_options(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's configuration for one server.

    Forwarded addresses are accepted only from trusted proxies.
    """
    return {
        "host": settings.host,
        "port": settings.port,
        "http": Connections(settings).protocol,
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "forwarded_allow_ips": [str(proxy) for proxy in settings.trusted_proxies],
        "timeout_graceful_shutdown": _SHUTDOWN_S,
    }


def _allow_many_sockets() -> None:
    """Raise the limit of open files as far as allowed: each waiting caller needs a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def worker(
    *,
    with_dispatcher: Annotated[
        bool, typer.Option("--dispatcher/--no-dispatcher", help="Also run a dispatcher.")
    ] = True,
) -> None:
    """Run a worker and a dispatcher.

    A worker executes one run at a time, on a GPU if available. Run any number of workers, on any
    number of machines; a worker that is stopped leaves its run to another.
    """
    supervise([_worker(), _dispatcher()] if with_dispatcher else [_worker()], StopSignal().listen())


def dispatcher() -> None:
    """Run only a dispatcher; several may run.

    It turns due requests into runs, assigns runs to workers, reassigns those of unresponsive
    workers, and cleans up.
    """
    supervise([_dispatcher()], StopSignal().listen())


def demo() -> None:
    """Run the main job end to end on real data, in a fresh temporary data directory."""
    os.execv(sys.executable, python_command("demo"))  # noqa: S606 - a fixed command


def _api() -> Child:
    return Child("api", python_command("app.cli", "serve"))


def _dispatcher() -> Child:
    return Child("dispatcher", python_command("workers", "dispatcher"))


def _worker() -> Child:
    return Child("worker", python_command("workers", "worker"))


def _embedded(settings: Settings) -> EmbeddedServers | None:
    """Return the embedded servers unless the settings give URLs of both."""
    if settings.database_url is not None and settings.redis_url is not None:
        return None
    return EmbeddedServers(settings.data_dir)


def _create_bucket(settings: Settings) -> None:
    store = object_store(settings)
    if isinstance(store, S3ObjectStore) and store.create_bucket():
        typer.echo(f"created the bucket {settings.s3_bucket}")


def _set_up_opendsr(settings: Settings) -> None:
    """Create the OpenDSR signing key and certificate, unless the operator provides them."""
    if settings.opendsr_certificate_file is not None:
        return
    key = load_processor_key(opendsr_key_file(settings), create=settings.opendsr_key_file is None)
    certificate = opendsr_certificate_file(settings)
    ensure_self_signed(certificate, key, domain=opendsr_domain(settings))


def _new_admin_key(settings: Settings) -> bytes:
    database = Database(database_url(settings))
    with actor.acting_as(actor.OPERATOR), database.transaction() as session:
        _, secret = api_keys.create_key(session, name="admin", scopes=[Scope.ADMIN])
    database.dispose()
    return secret.encode()

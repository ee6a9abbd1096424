"""Commands that set up and run the service on this machine."""

import errno
import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from app.access import api_keys
from app.cli.options import option
from app.cli.output import conclude, say
from app.domain.errors import ConfigurationError
from app.domain.states import Scope
from app.evidence.certificates.model_signing import ModelSigner
from app.evidence.certificates.processor_signing import ensure_self_signed, load_processor_key
from app.evidence.log import actor, signing_keys
from app.evidence.log.signing_keys import ensure_trusted_keys, require_same
from app.operations import schema
from app.runtime import locations
from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.home import claimed, require_unclaimed
from app.runtime.keyfiles import create_key_file
from app.runtime.processes.detached import start_detached, stop_detached
from app.runtime.processes.starting import python_command, uncollected
from app.runtime.processes.stopping import GRACE_S, StopSignal
from app.runtime.processes.supervisor import Child, stop_with_supervisor, supervise
from app.runtime.settings import Settings
from app.services import create_keys
from app.storage import stores
from app.storage.aws import S3ObjectStore

_log = logging.getLogger("expunge.service")


def init() -> None:
    """Create the data directory, its keys and the database's tables. Safe to repeat.

    Run it once, and again after each upgrade. 'expunge up' does it automatically. An embedded
    PostgreSQL runs meanwhile, and afterwards only if it did before.
    """
    settings = Settings()
    with locations.embedded_postgres(settings, create=True):
        trusted = _set_up(settings)
    say(f"ready: data in {settings.data_dir}, trusted keys in {trusted}")
    conclude({"data_dir": str(settings.data_dir), "trusted_keys": str(trusted)})


def up(
    *,
    detach: Annotated[
        bool, option("Return once it answers; 'expunge down' stops it.", "--detach")
    ] = False,
) -> None:
    """Run everything on this machine: embedded servers, API, dispatcher and worker.

    If EXPUNGE_DATABASE_URL and EXPUNGE_REDIS_URL are set, those servers replace the embedded ones.
    One data directory is used by one 'expunge up' at a time.
    """
    settings = Settings()
    was_killed = require_unclaimed(settings.data_dir)
    require_free_port(settings, patience_s=GRACE_S if was_killed else 0)
    if detach:
        start_detached(settings)
        return
    with claimed(settings.data_dir):
        _keep_running(settings)


def down() -> None:
    """Stop the service that runs in the data directory here, and wait until it has."""
    settings = Settings()
    stopped = stop_detached(settings.data_dir)
    say(f"stopped process {stopped}" if stopped else f"nothing runs in {settings.data_dir}")
    conclude({"stopped": stopped})


def _keep_running(settings: Settings) -> None:
    stop = StopSignal().listen()
    own = settings.database_url is not None and settings.redis_url is not None
    servers = None if own else EmbeddedServers(settings.data_dir)

    def keep_up() -> None:
        if servers is None:
            return
        if settings.database_url is None and not servers.postgres.running():
            servers.start_postgres()
        if settings.redis_url is None and not servers.redis.running():
            servers.start_redis()

    try:
        keep_up()
        trusted = _set_up(settings)
        say(f"ready: data in {settings.data_dir}, trusted keys in {trusted}")
        say(f"serving on http://{settings.host}:{settings.port} (Ctrl-C stops)")
        api = Child("api", python_command("app.cli", "serve"))
        supervise([api, _dispatcher(), _worker()], stop, keep_up=keep_up)
    finally:
        if servers is not None:
            servers.stop()


def serve() -> None:
    """Run only the API, at EXPUNGE_HOST and EXPUNGE_PORT."""
    with uncollected():
        from app.cli import application  # noqa: PLC0415 - slow to import

    stop_with_supervisor()
    settings = Settings()
    require_free_port(settings)
    _warn_without_servers(settings)
    application.run(application.prepared(settings))


def worker(
    *,
    with_dispatcher: Annotated[
        bool, option("Also run a dispatcher.", "--dispatcher/--no-dispatcher")
    ] = True,
) -> None:
    """Run a worker and a dispatcher.

    A worker executes one run at a time, on a GPU if available. Run any number of workers, on any
    number of machines; a worker that is stopped leaves its run to another.
    """
    _supervise([_worker(), _dispatcher()] if with_dispatcher else [_worker()])


def dispatcher() -> None:
    """Run only a dispatcher; several may run.

    It turns due requests into runs, assigns runs to workers, reassigns those of unresponsive
    workers, and cleans up.
    """
    _supervise([_dispatcher()])


def _supervise(children: Sequence[Child]) -> None:
    settings = Settings()  # so that a wrong one ends this, and not each of its children
    _warn_without_servers(settings)
    supervise(children, StopSignal().listen())


def demo() -> None:
    """Run the main job end to end on real data, in a fresh temporary data directory."""
    os.execv(sys.executable, python_command("demo"))  # noqa: S606 - a fixed command


def _set_up(settings: Settings) -> Path:
    """Create what is missing in a database that runs; return the file of trusted keys."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    schema.upgrade(locations.migration_url(settings), service_url=locations.database_url(settings))
    create_keys(settings)
    _set_up_opendsr(settings)
    model_key = locations.model_signing_key_file(settings)
    model_signer = ModelSigner.from_file(model_key)
    model_key.with_suffix(".pub").write_text(model_signer.public_key_pem, encoding="utf-8")
    create_key_file(settings.admin_key_file, lambda: _new_admin_key(settings))
    store = stores.object_store(settings)
    if isinstance(store, S3ObjectStore) and store.create_bucket():
        say(f"created the bucket {settings.s3_bucket}")
    database = Database(locations.database_url(settings))
    known = ensure_trusted_keys(settings, database)
    with database.transaction() as session:
        require_same(known, signing_keys.trusted(session))
    database.dispose()
    return settings.trusted_keys_file


def _dispatcher() -> Child:
    return Child("dispatcher", python_command("workers", "dispatcher"))


def _worker() -> Child:
    return Child("worker", python_command("workers", "worker"))


def _warn_without_servers(settings: Settings) -> None:
    if settings.database_url is None and not EmbeddedServers(settings.data_dir).postgres.running():
        _log.warning(
            "waiting for the embedded PostgreSQL, which 'expunge up' runs in %s; for servers of "
            "your own, set EXPUNGE_DATABASE_URL and EXPUNGE_REDIS_URL",
            settings.data_dir,
        )


def _set_up_opendsr(settings: Settings) -> None:
    """Create the OpenDSR signing key and certificate, unless the operator has put them there."""
    key = load_processor_key(locations.opendsr_key_file(settings), create=True)
    certificate = locations.opendsr_certificate_file(settings)
    ensure_self_signed(certificate, key, domain=locations.opendsr_domain(settings))


def _new_admin_key(settings: Settings) -> bytes:
    database = Database(locations.database_url(settings))
    with actor.acting_as(actor.OPERATOR), database.transaction() as session:
        _, secret = api_keys.create_key(session, name="admin", scopes=[Scope.ADMIN])
    database.dispose()
    return secret.encode()


_CHECK_INTERVAL_S = 0.25


def require_free_port(settings: Settings, *, patience_s: float = 0) -> None:
    """Check that the API's address is this machine's and its port free.

    Args:
        settings: where it will listen.
        patience_s: how long to wait for a process that was left behind and is stopping.

    Raises:
        ConfigurationError: it cannot listen there; the message says why.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            _probe(settings.host, settings.port)
        except OSError as error:
            if time.monotonic() < deadline and error.errno == errno.EADDRINUSE:
                time.sleep(_CHECK_INTERVAL_S)
                continue
            raise ConfigurationError(
                f"cannot listen on {settings.host}, port {settings.port} (EXPUNGE_HOST, "
                f"EXPUNGE_PORT): {error.strerror}"
            ) from error
        return


def _probe(host: str, port: int) -> None:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # likewise
            probe.bind(address)

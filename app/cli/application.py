"""The API as an ASGI application, and its server: what `expunge serve` runs."""

import ctypes
import gc
import logging
import resource
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any, Final

import pyarrow as pa
import uvicorn
from fastapi import Depends, FastAPI
from sqlalchemy.exc import DBAPIError
from starlette.middleware.cors import CORSMiddleware

from app.access.authentication import Authentication
from app.access.rate_limits import Counters, limits_of
from app.access.tokens import Tokens
from app.api import callbacks, forget_requests, operations
from app.api.protocol import bodies, errors, openapi
from app.api.protocol.access import metrics_access
from app.api.protocol.admission import Admission
from app.api.protocol.conditions import EntityTags
from app.api.protocol.idempotency import HEADER
from app.api.protocol.observation import REQUEST_ID, ApiMetrics, Observation
from app.api.protocol.schemas import HEADERS
from app.api.protocol.waiting import Watcher
from app.domain.errors import KeyStoreError
from app.operations import schema
from app.operations.monitoring.collector import ServiceCollector
from app.operations.monitoring.readiness import ReadinessChecks
from app.planning.planner import Planners
from app.runtime import spans
from app.runtime.locations import is_key_store_apart, redis_url
from app.runtime.processes.hardening import harden
from app.runtime.settings import Settings
from app.services import Services, open_services
from app.web.installation import install as install_pages

_log = logging.getLogger("expunge.api")
# Modules with a router each, in the order of the documentation. A call is compared with each route
# before its own, so those that are called most come first. OpenDSR may be left out.
_ROUTERS = (
    "app.api.forget_requests",
    "app.api.decisions",
    "app.api.datasets",
    "app.api.backbones",
    "app.api.models",
    "app.api.versions",
    "app.api.targets",
    "app.api.callbacks",
    "app.api.certificates",
    "app.api.derivatives",
    "app.api.dossiers",
    "app.api.runs",
    "app.api.keys",
    "app.api.log",
    "app.api.operations",
    "app.api.plans",
    "app.opendsr",
)
_SENDABLE = (
    *("Authorization", "Content-Type", HEADER, "If-Match", "If-None-Match", "If-Range", "Prefer"),
    *("Range", REQUEST_ID),
)
_SHUTDOWN_S = 5
_HEAD_BYTES = 16 * 1024
_KEEP_ALIVE_S = 75  # longer than a proxy keeps them, so that it uses none that is being closed
_PROBES = 64
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024
_ARENAS: Final = 2


def create_app(services: Services) -> FastAPI:
    """Return the application over the given services; ``ConfigurationError`` without a key."""
    _ = services.model_signer  # so that a missing key is an error now, not at the first download
    app = FastAPI(
        title="Expunge",
        summary="Makes trained PyTorch models forget, with proof.",
        version="1",
        webhooks=callbacks.webhooks,
        generate_unique_id_function=lambda route: route.name,
        # FastAPI's pages run scripts from other hosts, which could use an operator's session here.
        docs_url=None,
        redoc_url=None,
        # A redirect to the path without its slash would name the host that the client claims.
        redirect_slashes=False,
        # FastAPI's own spans and logs of requests name paths, and quote what was wrong in a body.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = services
    app.state.authentication = _authentication(services)
    app.state.forgetting = forget_requests.Forgetting(services)
    app.state.polls = forget_requests.Polls(services.database)
    app.state.watcher = Watcher(services.database)
    app.state.readiness = ReadinessChecks(services)
    app.state.metrics = ApiMetrics()
    app.state.metrics.registry.register(ServiceCollector(services.database, services.probe))
    errors.install(app)
    # The last middleware that is added is the outermost.
    app.add_middleware(EntityTags)
    app.add_middleware(bodies.Bodies, settings=services.settings)
    if services.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=services.settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=_SENDABLE,
            expose_headers=[*HEADERS],
        )
    app.add_middleware(
        Admission,
        most_calls=services.settings.max_connections,
        known=app.state.authentication.known,
    )
    app.add_middleware(Observation, metrics=app.state.metrics)
    for name in _ROUTERS:
        router = import_module(name).router
        app.include_router(router, dependencies=[Depends(bodies.require_media_type)])
    public = services.settings.metrics_public
    app.include_router(operations.metrics, dependencies=metrics_access(public=public))
    install_pages(app, services)
    openapi.install(app)
    return app


def _authentication(services: Services) -> Authentication:
    counters = Counters(redis_url(services.settings), services.pseudonyms)
    calls, failures = limits_of(services.settings, counters)
    return Authentication(
        services.database,
        services.pseudonyms,
        tokens=Tokens.from_settings(services.settings),
        calls=calls,
        failures=failures,
    )


def app_from_environment() -> FastAPI:
    """Return the application as the environment configures it; for uvicorn's ``--factory``."""
    harden()
    services = open_services(Settings(), process="API")
    _warn_of_excess_rights(services)
    _warn_of_keys_beside_objects(services)
    _warn_of_restored_ledger(services)
    return create_app(services)


def _warn_of_restored_ledger(services: Services) -> None:
    """Warn the operator that the ledger is older than the stored objects: it came from a backup."""
    try:
        unknown = services.unknown_objects
    except (DBAPIError, KeyStoreError, OSError):
        return
    if unknown:
        _log.critical(
            "%d stored objects are unknown to the ledger, so it was restored from a backup: "
            "run 'expunge reconcile'",
            unknown,
        )


def _warn_of_excess_rights(services: Services) -> None:
    """Warn the operator that the database does not prevent this process from rewriting the log."""
    try:
        excessive = schema.may_rewrite_log(services.database)
        large_objects = schema.may_store_large_objects(services.database)
    except DBAPIError:
        return
    if excessive:
        _log.warning(
            "the service's database role owns the log and could rewrite it: give it a role of its "
            "own in EXPUNGE_DATABASE_URL, the owner's in EXPUNGE_MIGRATION_URL, and run "
            "'expunge init'"
        )
    if large_objects:
        _log.warning(
            "the service's database role may store large objects, which nothing here erases: take "
            "that from it as PostgreSQL's superuser (docs/log.md)"
        )


def _warn_of_keys_beside_objects(services: Services) -> None:
    """Warn the operator that a backup of the data directory would survive shredding."""
    settings = services.settings
    if settings.environment == "production" and not is_key_store_apart(settings):
        _log.warning(
            "the key store lies in the data directory: a backup of it holds the keys too and opens "
            "what was shredded since, for ever: set EXPUNGE_KEY_STORE_DIR to a directory outside "
            "of it that no backup includes, and move the keys there (docs/blobs.md)"
        )


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


def prepared(settings: Settings) -> uvicorn.Server:
    """Return the server of the API, which has read its keys.

    Raises:
        ConfigurationError: the settings or the keys are wrong.
    """
    # Raise the limit of open files as far as allowed: each waiting caller needs a socket.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _give_back_large()
    app = app_from_environment()
    gc.freeze()  # a collection of all that is loaded would delay all calls by 0.1 s
    config = uvicorn.Config(app, **server_options(settings))
    return _Server(config, app.state.watcher, app.state.services.planners)


def run(server: uvicorn.Server) -> None:
    """Serve until a signal, send the last spans, and end by the signal.

    uvicorn raises the signal again as soon as it has stopped, which would end the process at once,
    or with a traceback.
    """
    ended: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(number)
        server.handle_exit(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run()
    spans.close()
    for received in ended[:1]:
        signal.signal(received, signal.SIG_DFL)
        signal.raise_signal(received)


def server_options(settings: Settings) -> dict[str, Any]:
    """Return uvicorn's configuration for one server.

    Forwarded addresses are accepted only from trusted proxies.
    """
    return {
        "host": settings.host,
        "port": settings.port,
        "http": "h11",
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "forwarded_allow_ips": [str(proxy) for proxy in settings.trusted_proxies],
        "h11_max_incomplete_event_size": _HEAD_BYTES,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": _SHUTDOWN_S,
        # The last resort, which refuses probes too: calls are limited in app/api/protocol.
        "limit_concurrency": settings.max_connections + _PROBES,
    }


def _give_back_large() -> None:
    """Have large blocks given back once they are freed; call before there are threads.

    glibc has an arena for each of many threads, and raises what it counts as large with each large
    block that is freed. Both keep freed memory for the process, many times what it needs otherwise.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)

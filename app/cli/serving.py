"""The API's server: what `expunge serve` runs."""

import gc
import resource
import signal
from types import FrameType
from typing import Any

import uvicorn

from app.api.protocol.waiting import Watcher
from app.cli.application import app_from_environment
from app.planning.planner import Planners
from app.runtime import spans
from app.runtime.processes import memory
from app.runtime.settings import Settings

_SHUTDOWN_S = 5
_HEAD_BYTES = 16 * 1024
_KEEP_ALIVE_S = 75  # longer than a proxy keeps them, so that it uses none that is being closed
_PROBES = 64


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
    memory.give_back_large()
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

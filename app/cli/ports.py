"""Whether the API can listen where it should."""

import errno
import socket
import time

from app.domain.errors import ConfigurationError
from app.settings import Settings

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

"""Connections to exactly the checked address, within a deadline.

A hostile name server can give one answer to the check and another to the connection that follows
(DNS rebinding). So the name is resolved once, here, and the connection uses that result. The Host
header and TLS SNI still carry the name, and the certificate must match it.
"""

import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpcore
from httpcore import SOCKET_OPTION, NetworkBackend, NetworkStream

from app.delivery.callbacks.addresses import Resolve, checked, why_refused
from app.domain.errors import CallbackError

_MAX_ADDRESSES = 4


@dataclass(frozen=True, kw_only=True)
class PinnedBackend(NetworkBackend):
    """Opens connections for one delivery, until ``deadline`` by ``time.monotonic``.

    ``resolve`` is called once for each connection. Without TLS, public addresses are not allowed
    where private ones are.
    """

    resolve: Resolve
    allow_private: bool
    allow_public: bool
    deadline: float
    sockets: NetworkBackend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        """Connect to the first of the name's addresses that accepts, or raise ``CallbackError``."""
        found = checked(self.resolve(host, port), allow_private=self.allow_private)
        if not self.allow_public and any(
            why_refused(address, allow_private=False) is None for address in found
        ):
            raise CallbackError("its address is public, and its URL has no TLS")
        failure: Exception = CallbackError("its name cannot be resolved")
        for address in found[:_MAX_ADDRESSES]:
            try:
                stream = self.sockets.connect_tcp(
                    address,
                    port,
                    timeout=_left(self.deadline, timeout),
                    local_address=local_address,
                    socket_options=socket_options or (),
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _DeadlineStream(stream, self.deadline)
        raise failure


@dataclass(frozen=True)
class _DeadlineStream(NetworkStream):
    """A connection whose operations together respect a deadline."""

    stream: NetworkStream
    deadline: float

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, _left(self.deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, _left(self.deadline, timeout))

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> NetworkStream:
        left = _left(self.deadline, timeout)
        try:
            stream = self.stream.start_tls(ssl_context, server_hostname, left)
        except httpcore.ConnectError as error:
            raise CallbackError("TLS failed, or its certificate is not valid") from error
        return _DeadlineStream(stream, self.deadline)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - httpcore's signature
        return self.stream.get_extra_info(info)


def _left(deadline: float, timeout: float | None) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the time for this delivery is over")
    return left if timeout is None else min(left, timeout)

"""Limits on the API's connections: their number, and the duration of each phase.

uvicorn waits for the rest of a request for ever. Here a head must arrive in time, a body at a
minimum speed, and the client must read the answer. A sweep checks all connections about once a
second, which costs nothing per request. A connection that exceeds the time of its phase is closed,
after a 408 if that can still be sent.
"""

import asyncio
import time
from collections import Counter
from ipaddress import ip_address
from typing import Any

import h11
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.access.rate_limits import network_of
from app.api.protocol.errors import problem_of
from app.domain.errors import OverloadedError, SlowRequestError, TooManyRequestsError
from app.runtime.settings import Settings

_SWEEP_S = 1.0
_SLOWEST_BODY_BYTES_PER_S = 10_000
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_RETRY_AFTER_S = 10


class Connections:
    """All connections of one server. ``protocol`` is passed to uvicorn as ``http``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: set[BoundedProtocol] = set()
        self._by_network: Counter[str] = Counter()
        shortest_s = min(
            settings.head_timeout_s, settings.body_timeout_s, settings.answer_timeout_s
        )
        self._interval_s = min(_SWEEP_S, shortest_s / 4)

    def protocol(self, **options: Any) -> "BoundedProtocol":  # noqa: ANN401 - set by uvicorn
        """Return the protocol of a new connection."""
        return BoundedProtocol(self, **options)

    def enter(self, connection: "BoundedProtocol") -> None:
        """Add a connection.

        Raises:
            OverloadedError: the service has too many connections.
            TooManyRequestsError: the client's address has too many.
        """
        if len(self._open) >= self.settings.max_connections:
            raise OverloadedError("the service has too many connections")
        network = connection.network
        most = self.settings.max_connections_per_address
        if self._by_network[network] >= most and not self._is_proxy(connection):
            raise TooManyRequestsError(
                "too many connections from this address", retry_after_s=_RETRY_AFTER_S
            )
        if not self._open:
            asyncio.get_running_loop().call_later(self._interval_s, self._sweep)
        self._open.add(connection)
        self._by_network[network] += 1

    def leave(self, connection: "BoundedProtocol") -> None:
        """Remove a connection that was added."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._by_network[connection.network] -= 1
        if not self._by_network[connection.network]:
            del self._by_network[connection.network]

    def _is_proxy(self, connection: "BoundedProtocol") -> bool:
        try:
            address = ip_address(connection.client[0] if connection.client else "")
        except ValueError:
            return False
        return any(address in proxies for proxies in self.settings.trusted_proxies)

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in list(self._open):
            connection.look(now)
        if self._open:
            asyncio.get_running_loop().call_later(self._interval_s, self._sweep)


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, hardened against deliberately slow or ambiguous clients."""

    def __init__(self, connections: Connections, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.conn = _StrictConnection(h11.SERVER)
        self._connections = connections
        self._settings = connections.settings
        self._phase: tuple[object, ...] = ()
        self._since = 0.0
        self._received_bytes = 0
        self._resumptions = 0
        self._lingering = False

    @property
    def network(self) -> str:
        """The unit of the connection limit per client: an address, or an IPv6 network."""
        return network_of(self.client[0] if self.client else "")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or send the reason for refusing it."""
        super().connection_made(transport)
        try:
            self._connections.enter(self)
        except (OverloadedError, TooManyRequestsError) as error:
            self._answer(error)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process a part of a request, or discard it if the answer was already sent."""
        self._received_bytes += len(data)
        if not self._lingering:
            super().data_received(data)
        elif self._received_bytes > _LINGER_BYTES:
            self.transport.abort()

    def resume_writing(self) -> None:
        """Note that the client is reading its answer."""
        self._resumptions += 1
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Stop reading a body once it is answered: refuse before 30 MB arrive, not after."""
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self.server_state.total_requests += 1
            self._linger()
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject what is not HTTP/1.1 or is ambiguous."""
        self._refuse(HTTPException(400, msg))

    def look(self, now: float) -> None:
        """Close the connection if its phase takes too long."""
        phase, longest_s = self._present()
        if phase != self._phase:
            self._phase, self._since, self._received_bytes = phase, now, 0
            return
        if longest_s is None or now - self._since <= longest_s:
            return
        if phase[0] == "head" and not self.conn.trailing_data[0]:
            self.transport.close()
        elif phase[0] in ("head", "body"):
            self._refuse(SlowRequestError(f"the {phase[0]} of the request came too slowly"))
        else:
            self.transport.abort()

    def _present(self) -> tuple[tuple[object, ...], float | None]:
        """Return the current phase, and how long it may last in s; None means for ever."""
        settings, state = self._settings, self.conn.their_state
        if self.transport.is_closing():
            return ("closing",), settings.answer_timeout_s
        if self._lingering:
            return ("lingering",), _LINGER_S
        if self.flow.write_paused:
            return ("answer", self._resumptions), settings.answer_timeout_s
        if state is h11.IDLE:
            return ("head", self.cycle), settings.head_timeout_s
        if state is h11.SEND_BODY and not self.flow.read_paused:
            earned_s = self._received_bytes / _SLOWEST_BODY_BYTES_PER_S
            return ("body", self.cycle), settings.body_timeout_s + earned_s
        return ("ours", self.cycle), None

    def _refuse(self, error: Exception) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer
            return
        self._answer(error)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    def _answer(self, error: Exception) -> None:
        answer = problem_of(error)
        head = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=head),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")

    def _linger(self) -> None:
        """Close, but not while a client is still sending and could not read its answer."""
        self._lingering = True
        self._received_bytes = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()


class _StrictConnection(h11.Connection):
    """Rejects requests with an ambiguous end (request smuggling; RFC 9112, 6.1 and 11.2)."""

    def next_event(self) -> Any:  # noqa: ANN401 - h11's own, a union with sentinels
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version != b"1.1"
            ):
                raise h11.RemoteProtocolError("the request has two contradictory lengths")
        return event

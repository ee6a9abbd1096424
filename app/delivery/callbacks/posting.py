"""One delivery attempt: a POST without redirects, with limits on time and answer size."""

import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpcore
from httpcore import SOCKET_OPTION, NetworkBackend, NetworkStream, SyncBackend

from app.delivery.callbacks.addresses import Resolve, checked, parse, why_refused
from app.delivery.callbacks.addresses import resolve as system_resolve
from app.domain.errors import CallbackError
from app.runtime.outgoing import pause_s, trust

_TIMEOUT_S = 15.0
_MAX_ADDRESSES = 4


# A hostile name server can give one answer to the check and another to the connection that follows
# (DNS rebinding). So the name is resolved once, and the connection uses that result. The Host
# header and TLS SNI still carry the name, and the certificate must match it.
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


_MAX_RESPONSE_BYTES = 16 * 1024
_LONGEST_PAUSE_S = 1e9
_USER_AGENT = "Expunge"


class Result(StrEnum):
    """The result of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt; ``failure`` says why it failed, never where."""

    result: Result
    failure: str | None = None
    retry_after_s: float = 0.0


class Poster:
    """Posts callbacks, ignoring proxies and certificates from the environment.

    The time is for one attempt, from name resolution to the answer's headers. ``ca_file`` holds
    additional trusted certificate authorities.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        timeout_s: float = _TIMEOUT_S,
        ca_file: Path | None = None,
        resolve: Resolve = system_resolve,
        sockets: NetworkBackend | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._allow_private = allow_private
        self._resolve = resolve
        self._sockets = sockets or SyncBackend()
        self._tls: ssl.SSLContext = httpcore.default_ssl_context()
        if ca_file is not None:
            trust(self._tls, ca_file)

    def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Post a body once. Failures are part of the outcome."""
        try:
            return self._post(address, headers, body)
        except CallbackError as error:
            return Outcome(Result.FAILED, str(error))
        except httpcore.TimeoutException:
            return Outcome(Result.FAILED, f"it took longer than {self._timeout_s:g} s")
        except httpcore.ConnectError:
            return Outcome(Result.FAILED, "no connection can be made")
        except httpcore.NetworkError:
            return Outcome(Result.FAILED, "the connection broke")
        except httpcore.ProtocolError:
            return Outcome(Result.FAILED, "its answer is not HTTP")

    def _post(self, address: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        parsed = parse(address)
        url = httpcore.URL(
            scheme=parsed.raw_scheme,
            host=parsed.raw_host,
            port=parsed.port,
            target=parsed.raw_path,
        )
        sent = {
            "Host": parsed.netloc.decode("ascii"),
            "User-Agent": _USER_AGENT,
            "Content-Type": "application/json",
            "Connection": "close",
            **headers,
        }
        backend = PinnedBackend(
            resolve=self._resolve,
            allow_private=self._allow_private,
            allow_public=parsed.scheme == "https" or not self._allow_private,
            deadline=time.monotonic() + self._timeout_s,
            sockets=self._sockets,
        )
        with (
            httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
            pool.stream("POST", url, headers=list(sent.items()), content=body) as response,
        ):
            _drain(response)
            status = response.status
            if 200 <= status < 300:
                return Outcome(Result.DELIVERED)
            if status == 410:
                return Outcome(Result.GONE, "it answered 410: it wants no more callbacks")
            return Outcome(Result.FAILED, f"it answered {status}", _retry_after_s(response))


def _drain(response: httpcore.Response) -> None:
    """Read the rest of the answer, within limits, and ignore it."""
    received = 0
    try:
        for part in response.iter_stream():
            received += len(part)
            if received > _MAX_RESPONSE_BYTES:
                return
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        return


def _retry_after_s(response: httpcore.Response) -> float:
    """Return the pause that the receiver asked for; 0 without a sensible one."""
    header = {name.lower(): value for name, value in response.headers}.get(b"retry-after", b"")
    pause = pause_s(header.decode("latin-1").strip())
    return 0.0 if pause is None or pause > _LONGEST_PAUSE_S else pause

"""One delivery attempt: a POST without redirects, with limits on time and answer size."""

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpcore
from httpcore import NetworkBackend, SyncBackend

from app.delivery.callbacks.addresses import Resolve
from app.delivery.callbacks.addresses import resolve as system_resolve
from app.delivery.callbacks.connection import PinnedBackend
from app.delivery.callbacks.urls import parse
from app.domain.errors import CallbackError, ConfigurationError
from app.runtime.retries import pause_s

_TIMEOUT_S = 15.0
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
            _trust(self._tls, ca_file)

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
            return _outcome(response)


def _trust(context: ssl.SSLContext, ca_file: Path) -> None:
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{ca_file} holds no certificates that can be read") from error


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


def _outcome(response: httpcore.Response) -> Outcome:
    status = response.status
    if 200 <= status < 300:
        return Outcome(Result.DELIVERED)
    if status == 410:
        return Outcome(Result.GONE, "it answered 410: it wants no more callbacks")
    return Outcome(Result.FAILED, f"it answered {status}", _retry_after_s(response))


def _retry_after_s(response: httpcore.Response) -> float:
    """Return the pause that the receiver asked for; 0 without a sensible one."""
    header = {name.lower(): value for name, value in response.headers}.get(b"retry-after", b"")
    pause = pause_s(header.decode("latin-1").strip())
    return 0.0 if pause is None or pause > _LONGEST_PAUSE_S else pause

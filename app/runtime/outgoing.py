"""Calls to other servers: what the environment says of them, and when they are tried again.

Libraries fall over proxies and certificates, or take a variable that names nothing for one that is
not set. So each way out asks here first, and a mistake is told by the name of its variable.

A call is repeated after a broken or refused connection, or an answer that asks to wait. The pause
is random up to a bound that doubles with each attempt, so that callers that failed together do not
retry together. It follows an answer's ``Retry-After``; if that is longer than ``longest_s``, the
answer is the outcome at once.
"""

import os
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from app.domain.errors import ConfigurationError

TRUSTED: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""What Python and httpx read."""
BUNDLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""What requests and boto3 read; each may be a folder, too."""
_PATIENCE = frozenset({429, 502, 503, 504})
_IN_FLIGHT = 409  # retried only if it says how long to wait
_NEVER_SENT_RIGHT = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)


def client_options(url: str) -> dict[str, Any]:
    """Return the options with which httpx calls a server as the environment says.

    Raises:
        ConfigurationError: a variable cannot be followed; it says which.
    """
    require_certificates(*TRUSTED)
    return {"trust_env": False, "verify": httpx.create_ssl_context(), "proxy": proxy_of(url)}


def require_certificates(*variables: str) -> None:
    """Raise ``ConfigurationError`` of a variable that names no certificates."""
    for name in variables:
        place = os.environ.get(name, "")
        folders = place.split(os.pathsep) if name == "SSL_CERT_DIR" else [place]
        if not place or (name != "SSL_CERT_FILE" and any(Path(each).is_dir() for each in folders)):
            continue
        try:
            ssl.create_default_context(cafile=place)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{name} names no certificates that can be read") from error


def trust(context: ssl.SSLContext, ca_file: Path) -> None:
    """Trust the authorities of ``EXPUNGE_CA_FILE``, too; ``ConfigurationError`` if it has none."""
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        message = f"EXPUNGE_CA_FILE: {ca_file.name} holds no certificates that can be read"
        raise ConfigurationError(message) from error


def proxy_of(url: str) -> httpx.Proxy | None:
    """Return the proxy for a server, or None; ``ConfigurationError`` if it is no HTTP proxy."""
    parts, proxies = urlsplit(url), getproxies()
    scheme = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(scheme)
    if not address or _is_exempt(parts.netloc, parts.hostname or "", proxies.get("no", "")):
        return None
    with suppress(httpx.InvalidURL, ValueError):
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
        if proxy.url.scheme in ("http", "https") and proxy.url.host:
            return proxy
    raise ConfigurationError(f"{scheme.upper()}_PROXY must be the URL of an HTTP proxy")


def _is_exempt(netloc: str, host: str, listed: str) -> bool:
    """Return whether a server is in a list of names, their ends, addresses and networks."""
    entries = (each.strip().rpartition("://")[2].lower() for each in listed.split(","))
    names = tuple(f".{name}" for name in (host, netloc.rpartition("@")[2].lower()))
    return any(
        entry == "*"
        or _is_within(host, entry.strip("[]"))
        or any(name.endswith(f".{entry.lstrip('*.')}") for name in names)
        for entry in entries
        if entry
    )


def _is_within(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


@dataclass(frozen=True)
class Retry:
    """How a caller retries.

    Attributes:
        attempts: how often a call is sent at most; 1 retries nothing.
        base_s: the bound of the first pause; it doubles with each attempt.
        longest_s: no pause is longer, and a longer ``Retry-After`` is not waited for.
        sleep: for tests.
    """

    attempts: int = 5
    base_s: float = 0.25
    longest_s: float = 20.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send until there is an outcome.

        Raises:
            httpx.TransportError: the last attempt's connection failed.
        """
        for attempt in range(1, self.attempts):
            try:
                answer = send()
            except _NEVER_SENT_RIGHT:
                raise
            except httpx.TransportError:
                self.sleep(self._pause_s(attempt))
                continue
            asked_s = retry_after_s(answer)
            if not asks_for_patience(answer) or (asked_s or 0.0) > self.longest_s:
                return answer
            self.sleep(max(asked_s or 0.0, self._pause_s(attempt)))
        return send()

    def _pause_s(self, attempt: int) -> float:
        bound_s = min(self.longest_s, self.base_s * 2 ** (attempt - 1))
        return random.uniform(0.0, bound_s)  # noqa: S311 - it only spreads callers


def retry_after_s(answer: httpx.Response) -> float | None:
    """Return the answer's ``Retry-After`` in seconds from now, if it has one that can be read."""
    return pause_s(answer.headers.get("Retry-After", ""))


def pause_s(header: str) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for; None if it cannot be read."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def asks_for_patience(answer: httpx.Response) -> bool:
    """Return whether the same call may succeed a little later."""
    if answer.status_code == _IN_FLIGHT:
        return "Retry-After" in answer.headers
    return answer.status_code in _PATIENCE

"""An issuer's public keys: found by OpenID Connect Discovery, kept for a while, fetched sparingly.

Keys are fetched again when they are old, and when a token names an unknown key: at most once per
``FETCH_INTERVAL_S``, whatever tokens arrive. While the issuer is unreachable its keys stay valid
for ``KEEP_S``, since access must not end with every short outage; a key that it withdraws during
that time is noticed only afterwards.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from app.domain import strict_json
from app.domain.errors import (
    ConfigurationError,
    InvalidCredentialsError,
    IssuerUnavailableError,
)
from app.domain.urls import is_safe_url
from app.runtime.outgoing import client_options

REFRESH_S = 300.0
KEEP_S = 3600.0
FETCH_INTERVAL_S = 30.0
TIMEOUT_S = 5.0
MAX_DOCUMENT_BYTES = 1024**2
MIN_RSA_BITS = 2048
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Only asymmetric ones: what an issuer publishes cannot be used to sign."""

_DISCOVERY = "/.well-known/openid-configuration"
_log = logging.getLogger("expunge.issuer")


class FetchError(Exception):
    """The issuer's answer is not what an issuer sends. The message says how, and quotes nothing."""


_IN_WORDS = (FetchError, ConfigurationError)


class IssuerKeys:
    """The public keys of one issuer, by their ``kid``. Safe between threads and event loops.

    ``issuer`` is its URL, exactly as its tokens spell it.
    """

    def __init__(self, issuer: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._lock = Lock()
        self._fetcher = ThreadPoolExecutor(1, "issuer-keys")
        self._keys: Mapping[str, PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._last_try_failed = False
        self._fetching: Future[None] | None = None

    async def key(self, kid: str) -> PyJWK:
        """Return a key.

        Raises:
            InvalidCredentialsError: the issuer has no such key.
            IssuerUnavailableError: the issuer cannot be reached, so this is not known.
        """
        key = self._known(kid)
        fetch = self._start_fetch() if key is None or self._is_old() else None
        if key is None and fetch is not None:
            await asyncio.shield(asyncio.wrap_future(fetch))
            key = self._known(kid)
        if key is not None:
            return key
        if self._last_try_failed:
            raise IssuerUnavailableError("the issuer of access tokens cannot be reached")
        raise InvalidCredentialsError("its issuer does not have the key that signed the token")

    def _known(self, kid: str) -> PyJWK | None:
        if self._fetched_at is None or self._clock() - self._fetched_at > KEEP_S:
            return None
        return self._keys.get(kid)

    def _is_old(self) -> bool:
        return self._fetched_at is None or self._clock() - self._fetched_at > REFRESH_S

    def _start_fetch(self) -> Future[None] | None:
        """Have the keys fetched, unless that was tried just now; return what to wait for."""
        with self._lock:
            if self._fetching is not None:
                return self._fetching
            now = self._clock()
            if self._tried_at is not None and now - self._tried_at < FETCH_INTERVAL_S:
                return None
            self._tried_at = now
            self._last_try_failed = True  # until it has succeeded
            self._fetching = self._fetcher.submit(self._fetch)
            return self._fetching

    def _fetch(self) -> None:
        try:
            keys = fetch_keys(self._issuer)
        except (*_IN_WORDS, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            why = str(error) if isinstance(error, _IN_WORDS) else type(error).__name__
            _log.warning("the keys of the issuer of access tokens cannot be fetched: %s", why)
        else:
            with self._lock:
                self._keys, self._fetched_at = keys, self._clock()
                self._last_try_failed = False
        finally:
            with self._lock:
                self._fetching = None


def fetch_keys(issuer: str) -> dict[str, PyJWK]:
    """Fetch an issuer's signing keys.

    Raises:
        FetchError: the answer is invalid.
        httpx.HTTPError: the issuer cannot be reached.
        httpx.InvalidURL, UnicodeError: the address is malformed.
    """
    options = client_options(issuer)
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, **options) as client:
        about = _document(client, issuer.rstrip("/") + _DISCOVERY)
        if about.get("issuer") != issuer:
            raise FetchError("the discovery document is another issuer's")
        where = about.get("jwks_uri")
        if not isinstance(where, str) or not is_safe_url(where):
            raise FetchError("the discovery document names no safe jwks_uri")
        listed = _document(client, where).get("keys")
    if not isinstance(listed, list):
        raise FetchError("the key set lists no keys")
    keys = [key for entry in listed if (key := _usable(entry)) is not None]
    return {str(key.key_id): key for key in keys}


def _document(client: httpx.Client, url: str) -> dict[str, Any]:
    deadline = time.monotonic() + TIMEOUT_S
    content = b""
    with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
        if answer.status_code != 200:
            raise FetchError(f"the issuer answered {answer.status_code}")
        for part in answer.iter_bytes():
            content += part
            if len(content) > MAX_DOCUMENT_BYTES or time.monotonic() > deadline:
                raise FetchError("the issuer's answer has no end")
    try:
        document = strict_json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FetchError("the issuer's answer is not JSON") from error
    if not isinstance(document, dict):
        raise FetchError("the issuer's answer is not a JSON object")
    return document


def _usable(entry: object) -> PyJWK | None:
    """Read one key; what is not for signatures, or of a kind that is not accepted, is left out."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
        return None
    if entry.get("use", "sig") != "sig" or entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    if "d" in entry:  # a private key was published: anyone may have signed with it
        return None
    try:
        key = PyJWK(entry)
    except (PyJWTError, ValueError, TypeError, AttributeError):
        return None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        return None
    return key if key.algorithm_name in ALGORITHMS else None

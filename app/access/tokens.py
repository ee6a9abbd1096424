"""Access tokens of an OpenID Connect issuer: whom they name, and what they allow.

The issuer's public keys are found by OpenID Connect Discovery, and kept by PyJWT's client. They are
fetched again when they are old, and when a token names an unknown key: at most once per
``FETCH_INTERVAL_S``, whatever tokens arrive.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWKClient, PyJWKSet
from jwt.exceptions import PyJWKClientError, PyJWTError
from jwt.utils import base64url_decode

from app.domain import strict_json
from app.domain.checks import is_safe_url
from app.domain.errors import (
    ConfigurationError,
    ExpiredCredentialsError,
    InvalidCredentialsError,
    IssuerUnavailableError,
)
from app.domain.states import Scope
from app.runtime.outgoing import client_options
from app.runtime.settings import Settings

REFRESH_S = 300.0
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


class IssuerKeys(PyJWKClient):
    """The public keys of one issuer, by their ``kid``. Safe between threads and event loops.

    ``issuer`` is its URL, exactly as its tokens spell it.
    """

    def __init__(self, issuer: str) -> None:
        super().__init__(issuer, lifespan=REFRESH_S, cooldown_duration=FETCH_INTERVAL_S)
        self._fetcher = ThreadPoolExecutor(1, "issuer-keys")
        self._no_fetch_until = 0.0

    async def key(self, kid: str) -> PyJWK:
        """Return a key.

        Raises:
            InvalidCredentialsError: the issuer has no such key.
            IssuerUnavailableError: the issuer cannot be reached, so this is not known.
        """
        known = self.jwk_set_cache and self.jwk_set_cache.get()
        key = self.match_kid(known.keys, kid) if known else None
        if key is not None:
            return key
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._fetcher, self.get_signing_key, kid)
        except PyJWKClientError as error:
            message = "its issuer does not have the key that signed the token"
            raise InvalidCredentialsError(message) from error

    def fetch_data(self) -> PyJWKSet:
        """Fetch the keys; after a failure not again for a while: ``IssuerUnavailableError``."""
        unavailable = IssuerUnavailableError("the issuer of access tokens cannot be reached")
        if time.monotonic() < self._no_fetch_until:
            raise unavailable
        try:
            return fetch_keys(self.uri)
        except (*_IN_WORDS, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            self._no_fetch_until = time.monotonic() + FETCH_INTERVAL_S
            why = str(error) if isinstance(error, _IN_WORDS) else type(error).__name__
            _log.warning("the keys of the issuer of access tokens cannot be fetched: %s", why)
            raise unavailable from error


def fetch_keys(issuer: str) -> PyJWKSet:
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
    usable = [entry for entry in listed if _is_usable(entry)]
    if not usable:
        raise FetchError("the key set has no key that is accepted")
    return PyJWKSet(usable)


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


def _is_usable(entry: object) -> bool:
    """Say whether an entry is a key for signatures of a kind that is accepted."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
        return False
    if entry.get("use", "sig") != "sig" or entry.get("kty") not in ("RSA", "EC", "OKP"):
        return False
    if "d" in entry:  # a private key was published: anyone may have signed with it
        return False
    try:
        key = PyJWK(entry)
    except (PyJWTError, ValueError, TypeError, AttributeError):
        return False
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        return False
    return key.algorithm_name in ALGORITHMS


LEEWAY_S = 30
"""How far two machines' clocks may be apart."""

MAX_TOKEN_CHARS = 16 * 1024
_TYPES = {None, "jwt", "at+jwt", "application/at+jwt"}
_REQUIRED = ["iss", "aud", "sub", "exp", "iat"]
_MAX_SUBJECT_CHARS = 1000


@dataclass(frozen=True)
class Bearer:
    """Of whom a token is: issuer and subject name one caller, and are never shown or logged."""

    issuer: str = field(repr=False)
    subject: str = field(repr=False)
    scopes: frozenset[Scope]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Checks access tokens of one issuer for one audience.

    Args:
        issuer: its URL, exactly as its tokens spell it.
        audience: what tokens must be meant for.
        scope_claim: the member that says what a bearer may do, a text of words or a list of them;
            dots separate nested members.
        meanings: the scopes that words stand for which are not scopes of this service.
        keys: the issuer's.
    """

    issuer: str
    audience: str
    scope_claim: str
    meanings: Mapping[str, tuple[Scope, ...]]
    keys: IssuerKeys

    @classmethod
    def from_settings(cls, settings: Settings) -> "Tokens | None":
        """Return what the settings ask for; None if they name no issuer."""
        if settings.oidc_issuer is None or settings.oidc_audience is None:
            return None
        return cls(
            issuer=settings.oidc_issuer,
            audience=settings.oidc_audience,
            scope_claim=settings.oidc_scope_claim,
            meanings=settings.oidc_scopes,
            keys=IssuerKeys(settings.oidc_issuer),
        )

    async def bearer_of(self, token: str) -> Bearer:
        """Check a token; return whom it names.

        Raises:
            ExpiredCredentialsError: it was valid and has expired.
            InvalidCredentialsError: anything else is wrong with it.
            IssuerUnavailableError: it cannot be checked now.
        """
        key = await self.keys.key(_key_id(token))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self.issuer,
                audience=self.audience,
                leeway=LEEWAY_S,
                options={"require": _REQUIRED},
            )
        except jwt.ExpiredSignatureError as error:
            raise ExpiredCredentialsError("this access token has expired") from error
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise InvalidCredentialsError(f"the access token {_fault(error)}") from error
        subject = claims["sub"]
        if not _is_name(subject):
            raise InvalidCredentialsError("the access token has no subject")
        return Bearer(self.issuer, subject, self._scopes(claims))

    def _scopes(self, claims: Mapping[str, Any]) -> frozenset[Scope]:
        found: object = claims.get(self.scope_claim)
        if found is None:
            found = claims
            for part in self.scope_claim.split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
        words = found.split() if isinstance(found, str) else found
        if not isinstance(words, list):
            return frozenset()
        granted: set[Scope] = set()
        for word in words:
            if isinstance(word, str):
                granted |= {scope for scope in Scope if scope == word}
                granted |= set(self.meanings.get(word, ()))
        return frozenset(granted)


def _is_name(subject: object) -> TypeGuard[str]:
    """Say whether a subject is valid text; JSON may hold half a surrogate pair."""
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_CHARS:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in subject)


def _key_id(token: str) -> str:
    """Return which key a token claims to be signed with; nothing else in it is trusted yet."""
    if len(token) > MAX_TOKEN_CHARS:
        raise InvalidCredentialsError("the access token is too long")
    try:
        for part in token.split(".")[:2]:
            strict_json.loads(base64url_decode(part))
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidCredentialsError("this is neither an API key nor an access token") from error
    kind, kid = header.get("typ"), header.get("kid")
    if (kind.lower() if isinstance(kind, str) else kind) not in _TYPES or "crit" in header:
        raise InvalidCredentialsError("the token is of another kind than access tokens are")
    if header.get("alg") not in ALGORITHMS:
        raise InvalidCredentialsError("the token's algorithm is not accepted")
    if not isinstance(kid, str):
        raise InvalidCredentialsError("the token does not say which key signed it")
    return kid


def _fault(error: Exception) -> str:
    """Say what is wrong without quoting the token."""
    faults = {
        jwt.InvalidAudienceError: "is meant for another audience",
        jwt.InvalidIssuerError: "is another issuer's",
        jwt.ImmatureSignatureError: "is not valid yet",
        jwt.MissingRequiredClaimError: "lacks a member that it needs",
        jwt.InvalidSignatureError: "is not signed by its issuer",
    }
    return next(
        (said for kind, said in faults.items() if isinstance(error, kind)), "cannot be read"
    )

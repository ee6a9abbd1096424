"""Access tokens of an OpenID Connect issuer: whom they name, and what they allow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import jwt
from jwt.utils import base64url_decode

from app.access.issuer import ALGORITHMS, IssuerKeys
from app.domain import strict_json
from app.domain.errors import ExpiredCredentialsError, InvalidCredentialsError
from app.domain.scopes import Scope
from app.runtime.settings import Settings

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

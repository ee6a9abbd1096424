"""Which access tokens are believed, and what they allow."""

import asyncio
import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from app.access.tokens import LEEWAY_S, Bearer, IssuerKeys, Tokens
from app.domain.errors import (
    ConfigurationError,
    ExpiredCredentialsError,
    InvalidCredentialsError,
)
from app.domain.states import Scope
from app.runtime.settings import Settings
from tests.support.issuer import AUDIENCE, Issuer, private_key, signed


def _tokens(issuer: Issuer, claim: str = "scope", **meanings: tuple[Scope, ...]) -> Tokens:
    return Tokens(
        issuer=issuer.url,
        audience=AUDIENCE,
        scope_claim=claim,
        meanings=meanings,
        keys=IssuerKeys(issuer.url),
    )


def _check(tokens: Tokens, token: str) -> Bearer:
    return asyncio.run(tokens.bearer_of(token))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_good_token(issuer: Issuer, algorithm: str) -> None:
    issuer.add_key("other", algorithm)
    bearer = _check(_tokens(issuer), issuer.token(kid="other"))
    assert (bearer.issuer, bearer.subject) == (issuer.url, "person-4711")
    assert bearer.scopes == {Scope.MODELS_READ}
    assert "person" not in repr(bearer)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": "https://another.example"},
        {"aud": None},
        {"aud": []},
        {"iss": "https://another.example"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 1001},
        {"iat": None},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": int(time.time()) + 3600},
        {"iat": int(time.time()) + 3600},
        {"headers": {"kid": None}},
        {"headers": {"kid": 7}},
        {"headers": {"kid": "unknown"}},
        {"headers": {"typ": "logout+jwt"}},
        {"headers": {"typ": 7}},
        {"headers": {"crit": ["b64"], "b64": True}},
    ],
)
def test_a_token_that_is_not_for_us(issuer: Issuer, changed: dict) -> None:
    with pytest.raises(InvalidCredentialsError) as caught:
        _check(_tokens(issuer), issuer.token(**changed))
    assert not isinstance(caught.value, ExpiredCredentialsError)
    assert "person" not in str(caught.value)


@pytest.mark.parametrize("part", [0, 1])
def test_a_token_that_names_a_member_twice_is_refused(issuer: Issuer, part: int) -> None:
    """What one reader takes for the subject, another might not."""

    class Doubled(dict):
        """Written as JSON, it has its first member twice."""

        def items(self):
            first, *others = super().items()
            return [first, first, *others]

    algorithm, private = issuer.private["first"]
    parts = [{"alg": algorithm, "kid": "first", "typ": "at+jwt"}, issuer.claims()]
    assert _check(_tokens(issuer), signed(*parts, private, algorithm=algorithm)).scopes
    parts[part] = Doubled(parts[part])
    with pytest.raises(InvalidCredentialsError):
        _check(_tokens(issuer), signed(*parts, private, algorithm=algorithm))


def test_an_expired_token_is_told_so_and_clocks_may_differ_a_little(issuer: Issuer) -> None:
    tokens = _tokens(issuer)
    assert _check(tokens, issuer.token(exp=int(time.time()) - LEEWAY_S // 2))
    with pytest.raises(ExpiredCredentialsError):
        _check(tokens, issuer.token(exp=int(time.time()) - 2 * LEEWAY_S))


def test_the_audience_may_be_one_of_several(issuer: Issuer) -> None:
    assert _check(_tokens(issuer), issuer.token(aud=["https://another.example", AUDIENCE]))


def test_forgeries(issuer: Issuer) -> None:
    tokens = _tokens(issuer)
    public = issuer.private["first"][1].public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    other_rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    head = {"kid": "first"}
    good = issuer.token()
    swapped = issuer.token(scope="admin").split(".")[1]
    forged = [
        signed({"alg": "RS256", **head}, issuer.claims(), other_rsa),
        signed({"alg": "ES256", **head}, issuer.claims(), private_key("ES256")),
        signed({"alg": "EdDSA", **head}, issuer.claims(), private_key("EdDSA")),
        # Its own key with an algorithm that the issuer did not list it for.
        signed({"alg": "PS256", **head}, issuer.claims(), issuer.private["first"][1]),
        # The public key as a shared secret: the confusion of algorithms.
        signed({"alg": "HS256", **head}, issuer.claims(), pem),
        signed({"alg": "none", **head}, issuer.claims(), None),
        signed({"alg": "RS256", **head}, issuer.claims(), None, algorithm="none"),
        ".".join([good.split(".")[0], swapped, good.split(".")[2]]),
        good[:-8] + "AAAAAAAA",
        good + "x" * 20_000,
        "a.b.c",
        "..",
        "x",
    ]
    for token in forged:
        with pytest.raises(InvalidCredentialsError):
            _check(tokens, token)
    assert _check(tokens, good)


@pytest.mark.parametrize(
    ("claim", "value", "scopes"),
    [
        ("scope", "forget:read  log:read profile", {Scope.FORGET_READ, Scope.LOG_READ}),
        ("scope", ["forget:read", 7, None], {Scope.FORGET_READ}),
        ("scope", 7, set()),
        ("scope", {"forget:read": True}, set()),
        ("permissions", ["admin"], {Scope.ADMIN}),
        ("realm.roles", None, {Scope.DATA_WRITE}),
        ("https://example.com/roles", ["desk"], {Scope.FORGET_READ, Scope.FORGET_WRITE}),
        ("nothing.there", None, set()),
    ],
)
def test_scopes_come_from_the_claim_that_was_set(
    issuer: Issuer, claim: str, value: object, scopes: set[Scope]
) -> None:
    tokens = _tokens(issuer, claim, desk=(Scope.FORGET_READ, Scope.FORGET_WRITE))
    token = issuer.token(**{"realm": {"roles": ["data:write"]}, claim: value})
    assert _check(tokens, token).scopes == scopes


@pytest.mark.parametrize(
    "changed",
    [
        {"oidc_issuer": "https://issuer.example"},
        {"oidc_audience": "us"},
        {"oidc_issuer": "http://issuer.example", "oidc_audience": "us"},
        {"oidc_issuer": "https://", "oidc_audience": "us"},
        {"oidc_issuer": "https://user@issuer.example", "oidc_audience": "us"},
        {"oidc_scopes": {"desk": ["everything"]}},
        {"trusted_proxies": ["everybody"]},
    ],
)
def test_settings_that_cannot_be(changed: dict) -> None:
    with pytest.raises(ConfigurationError):
        Settings(**changed)


def test_settings_that_name_no_issuer_accept_no_tokens() -> None:
    assert Tokens.from_settings(Settings()) is None

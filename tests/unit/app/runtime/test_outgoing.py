"""What the environment says of connections is followed, or refused by the name of its variable."""

from collections.abc import Callable
from pathlib import Path

import certifi
import httpx
import pytest

from app.access.tokens import fetch_keys
from app.client import ExpungeClient
from app.delivery.publishing.mlflow import MlflowServer
from app.domain.errors import ConfigurationError
from app.runtime.outgoing import client_options, proxy_of
from app.storage.aws import client_of
from app.storage.vault import Login, VaultKey

ODD = "*.local,[::1],10.0.0.0/8, ,http://x,fe80::/10,[::1]:80,é.example,host:99999,."
AMAZON = {"timeouts_s": (1.0, 1.0), "attempts": 1}
CLIENTS: dict[str, Callable[[], object]] = {
    "client": lambda: ExpungeClient("https://service.example", "key"),
    "issuer": lambda: fetch_keys("https://issuer.example"),
    "bucket": lambda: client_of("s3", {"endpoint": "https://s3.example"}, **AMAZON),
    "keys": lambda: client_of("kms", {"region": "eu-west-1"}, **AMAZON),
    "vault": lambda: VaultKey("https://vault.example", "key", Login()),
    "mlflow": lambda: MlflowServer("https://mlflow.example"),
}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("SSL_CERT_FILE", ["client", "issuer", "mlflow"]),
        ("SSL_CERT_DIR", ["client", "issuer", "mlflow"]),
        ("AWS_CA_BUNDLE", ["bucket", "keys"]),
        ("REQUESTS_CA_BUNDLE", ["bucket", "vault"]),
        ("CURL_CA_BUNDLE", ["vault"]),
    ],
)
@pytest.mark.parametrize("kind", ["missing", "no certificates", "no file"])
def test_certificates_that_are_not_there_are_told_by_their_variable(
    name: str, users: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("no certificate")
    value = {"missing": tmp_path / "no", "no certificates": tmp_path / "text", "no file": "\t"}
    monkeypatch.setenv(name, str(value[kind]))
    for user in users:
        with pytest.raises(ConfigurationError, match=f"{name} names no certificates"):
            CLIENTS[user]()


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"])
def test_certificates_that_are_there_are_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, certifi.where())
    for user in ("client", "bucket", "vault", "mlflow"):
        CLIENTS[user]()


@pytest.mark.parametrize("user", ["client", "issuer", "bucket", "keys", "vault"])
@pytest.mark.parametrize(
    "address",
    ["socks5://h:1", "socks5h://h", "ftp://h", "http://", "://", "http://[::1", "a b://h"],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "ALL_PROXY"])
def test_a_proxy_that_is_none_is_told_by_its_variable(
    user: str, address: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, address)
    with pytest.raises(ConfigurationError, match=f"{name} must be the URL of an HTTP proxy"):
        CLIENTS[user]()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("h:3128", "http://h:3128"),
        ("h", "http://h"),
        ("127.0.0.1:1", "http://127.0.0.1:1"),
        ("https://u:p@h:1/", "https://h:1/"),
    ],
)
def test_a_proxy_needs_no_scheme(
    address: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", address)
    found = proxy_of("http://service.example")
    assert found is not None
    assert found.url == httpx.URL(expected)
    assert proxy_of("https://service.example") is None


@pytest.mark.parametrize(
    ("url", "exempt"),
    [
        ("http://a.local:8100", True),
        ("http://[::1]:8100", True),
        ("http://10.1.2.3", True),
        ("http://[fe80::1]", True),
        ("http://x", True),
        ("http://deep.x", True),
        ("http://local.example", False),
        ("http://11.1.2.3", False),
        ("http://y", False),
    ],
)
def test_exemptions_of_odd_form_are_read(
    url: str, *, exempt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://h:1")
    monkeypatch.setenv("NO_PROXY", ODD)
    assert (proxy_of(url) is None) == exempt
    with httpx.Client(**client_options(url)), ExpungeClient(url, "key"):
        pass
    monkeypatch.setenv("NO_PROXY", f"{ODD},*")
    assert proxy_of(url) is None

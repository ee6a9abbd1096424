"""Vault's answers: tokens that expire, throttling, sealing, and what is not Vault at all."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.domain.errors import KeyServiceError, KeyStoreError
from app.storage.vault import TOKEN_INTERVAL_S, Login, VaultKey
from tests.support.vault import ROLE, TransitKey, VaultServer


@pytest.fixture
def server() -> Iterator[VaultServer]:
    server = VaultServer()
    server.keys["transit", "expunge"] = TransitKey()
    yield server
    server.stop()


@pytest.fixture
def file(tmp_path: Path, server: VaultServer) -> Path:
    path = tmp_path / "token"
    path.write_text(server.token() + "\n")
    return path


def test_a_token_of_a_file_is_read_again_once_it_is_refused(
    server: VaultServer, file: Path
) -> None:
    now = 0.0
    key = VaultKey(server.url, "expunge", Login(token_file=file), clock=lambda: now)
    wrapped = key.encrypt(b"content", {})
    now += TOKEN_INTERVAL_S + 1
    server.tokens.clear()
    file.write_text(server.token())
    assert key.decrypt(wrapped, {}) == b"content"


def test_a_role_logs_in_again_but_not_over_and_over(server: VaultServer) -> None:
    now = 0.0
    key = VaultKey(server.url, "expunge", Login(**ROLE), clock=lambda: now)
    wrapped = key.encrypt(b"content", {})
    key.decrypt(wrapped, {})
    assert server.logins == 1

    server.tokens.clear()
    for _ in range(3):
        with pytest.raises(KeyServiceError, match="refused to serve the key store: Forbidden"):
            key.decrypt(wrapped, {})
    assert server.logins == 1
    now += TOKEN_INTERVAL_S + 1
    assert key.decrypt(wrapped, {}) == b"content"
    assert server.logins == 2


def test_a_wrong_secret_and_a_missing_file_are_told_without_them(
    server: VaultServer, tmp_path: Path
) -> None:
    for login in (
        Login(role_id="role", secret_id="sesame"),
        Login(token_file=tmp_path / "sesame"),
    ):
        with pytest.raises(KeyServiceError) as refused:
            VaultKey(server.url, "expunge", login).encrypt(b"content", {})
        assert "sesame" not in str(refused.value)


def test_no_token_is_looked_for_elsewhere(
    server: VaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", server.token())
    empty = tmp_path / "token"
    empty.write_text("")
    with pytest.raises(KeyServiceError, match="Forbidden"):
        VaultKey(server.url, "expunge", Login(token_file=empty)).encrypt(b"content", {})


def test_throttling_is_waited_out(server: VaultServer, file: Path) -> None:
    server.throttled = 2
    key = VaultKey(server.url, "expunge", Login(token_file=file))
    assert key.decrypt(key.encrypt(b"content", {}), {}) == b"content"
    server.throttled = 10
    with pytest.raises(KeyServiceError, match="RateLimitExceeded"):
        key.encrypt(b"content", {})


def test_a_sealed_vault_is_an_outage(server: VaultServer, file: Path) -> None:
    key = VaultKey(server.url, "expunge", Login(token_file=file))
    wrapped = key.encrypt(b"content", {})
    server.status = 503
    with pytest.raises(KeyServiceError, match="VaultDown"):
        key.decrypt(wrapped, {})
    server.status = None
    assert key.decrypt(wrapped, {}) == b"content"


def test_another_mount_and_a_key_that_is_not_there_are_told(
    server: VaultServer, file: Path
) -> None:
    login = Login(token_file=file)
    with pytest.raises(KeyServiceError, match="Forbidden"):
        VaultKey(server.url, "other", login).encrypt(b"content", {})
    with pytest.raises(KeyServiceError, match="encryption key not found"):
        VaultKey(server.url, "other", login).decrypt(b"vault:v1:AAAA", {})
    server.keys["elsewhere", "expunge"] = TransitKey()
    wrapped = VaultKey(server.url, "expunge", login, mount="elsewhere").encrypt(b"content", {})
    with pytest.raises(KeyStoreError, match="cannot unwrap"):
        VaultKey(server.url, "expunge", login).decrypt(wrapped, {})


@pytest.mark.parametrize(
    "ciphertext", [b"vault", b"vault:v1:", b"\xff\xfe", b"vault:v1:####", b"vault:vv:AAAA"]
)
def test_what_it_did_not_wrap_is_told_from_outages(
    server: VaultServer, file: Path, ciphertext: bytes
) -> None:
    key = VaultKey(server.url, "expunge", Login(token_file=file))
    with pytest.raises(KeyStoreError):
        key.decrypt(ciphertext, {})


def test_a_version_that_a_server_does_not_know_yet_is_no_lost_key(
    server: VaultServer, file: Path
) -> None:
    """As of a standby that lags behind."""
    with pytest.raises(KeyServiceError, match="version is too new"):
        VaultKey(server.url, "expunge", Login(token_file=file)).decrypt(b"vault:v9:AAAA", {})


def test_what_answers_but_is_not_vault_is_told(file: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            pass

    other = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=other.serve_forever, args=[0.05], daemon=True).start()
    url = f"http://127.0.0.1:{other.server_address[1]}"
    with pytest.raises(KeyServiceError, match="is not Vault"):
        VaultKey(url, "expunge", Login(token_file=file)).encrypt(b"content", {})
    other.shutdown()
    other.server_close()

"""KMS that throttles, refuses or does not answer: Amazon's error codes, over a socket."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.domain.errors import KeyServiceError, KeyStoreError
from app.storage.kms import KmsKey
from tests.support.s3 import environment_of


class Amazon:
    """Answers calls with the errors it is told to, one by one, and then with success."""

    def __init__(self) -> None:
        self.errors: list[tuple[int, str]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        amazon = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                amazon.calls.append((self.headers["X-Amz-Target"], json.loads(body)))
                status, answer = 200, {"Plaintext": base64.b64encode(b"content").decode()}
                if amazon.errors:
                    status, code = amazon.errors.pop(0)
                    answer = {"__type": code, "message": "it names a secret"}
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Amazon]:
    amazon = Amazon()
    for name, value in environment_of("kms", amazon.endpoint).items():
        monkeypatch.setenv(name, value)
    yield amazon
    amazon.close()


def test_the_key_and_the_context_are_named_when_decrypting(amazon: Amazon) -> None:
    """Else KMS would take what any key of any account has made."""
    assert KmsKey("alias/expunge").decrypt(b"wrapped", {"period": "1"}) == b"content"
    ((target, sent),) = amazon.calls
    assert target == "TrentService.Decrypt"
    assert sent == {
        "KeyId": "alias/expunge",
        "CiphertextBlob": base64.b64encode(b"wrapped").decode(),
        "EncryptionContext": {"period": "1"},
    }


def test_throttling_is_waited_out(amazon: Amazon) -> None:
    amazon.errors = [(400, "ThrottlingException"), (500, "KMSInternalException")]
    assert KmsKey("alias/expunge").decrypt(b"wrapped", {}) == b"content"
    assert len(amazon.calls) == 3


@pytest.mark.parametrize("code", ["InvalidCiphertextException", "IncorrectKeyException"])
def test_what_the_key_did_not_wrap_is_told_from_outages(amazon: Amazon, code: str) -> None:
    amazon.errors = [(400, code)]
    with pytest.raises(KeyStoreError, match=code) as refused:
        KmsKey("alias/expunge").decrypt(b"wrapped", {})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "code",
    [
        "AccessDeniedException",
        "DisabledException",
        "KMSInvalidStateException",
        "NotFoundException",
        "UnrecognizedClientException",
    ],
)
def test_a_refusal_does_not_look_like_a_lost_key(amazon: Amazon, code: str) -> None:
    """A key that waits for its deletion or is disabled can be had back."""
    amazon.errors = [(400, code)]
    with pytest.raises(KeyServiceError, match=f"refused to serve the key store: {code}"):
        KmsKey("alias/expunge").decrypt(b"wrapped", {})


def test_throttling_that_lasts_is_told(amazon: Amazon) -> None:
    amazon.errors = [(400, "ThrottlingException")] * 10
    with pytest.raises(KeyServiceError, match="ThrottlingException"):
        KmsKey("alias/expunge").decrypt(b"wrapped", {})
    assert len(amazon.calls) == 3

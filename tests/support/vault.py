"""A server with the HTTP interface of Vault's transit engine and AppRole login.

It follows Vault's API documentation: AES-256-GCM with associated data, versions of keys, their
least version for decryption and their trimming, tokens that are refused with 403, 503 while it is
sealed, 429 when it throttles, and Vault's own error messages.
"""

import base64
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.service import free_port

ROLE = {"role_id": "role", "secret_id": "secret-of-the-role"}
Members = Mapping[str, Any]


class RefusedError(Exception):
    """An answer with an error."""

    def __init__(self, status: int, *errors: str) -> None:
        super().__init__(status)
        self.status = status
        self.errors = errors


@dataclass
class TransitKey:
    """One key with its versions, counted from 1; trimmed ones are gone for good."""

    versions: dict[int, bytes] = field(default_factory=lambda: {1: os.urandom(32)})
    least: int = 1

    def rotate(self) -> None:
        self.versions[max(self.versions) + 1] = os.urandom(32)

    def close(self, least: int) -> None:
        """Refuse to decrypt with older versions; what was trimmed cannot be opened again."""
        if least < min(self.versions):
            raise RefusedError(400, "min decryption version is less than min available version")
        self.least = least

    def trim(self, least: int) -> None:
        """Destroy older versions; Vault demands that they were closed before."""
        if least > self.least:
            raise RefusedError(400, "minimum available version exceeds the min_decryption_version")
        self.versions = {n: key for n, key in self.versions.items() if n >= least}

    def encrypt(self, given: Members) -> dict[str, str]:
        number, nonce = max(self.versions), os.urandom(12)
        content = base64.b64decode(given["plaintext"])
        sealed = nonce + AESGCM(self.versions[number]).encrypt(nonce, content, _associated(given))
        return {"ciphertext": f"vault:v{number}:{base64.b64encode(sealed).decode()}"}

    def decrypt(self, given: Members) -> dict[str, str]:
        if not given["ciphertext"]:
            raise RefusedError(400, "missing ciphertext to decrypt")
        prefix, _, rest = given["ciphertext"].partition(":v")
        number, _, encoded = rest.partition(":")
        if prefix != "vault" or not number.isdigit():
            raise RefusedError(400, "invalid ciphertext: no prefix")
        if int(number) > max(self.versions):
            raise RefusedError(400, "invalid ciphertext: version is too new")
        if int(number) < self.least:
            raise RefusedError(
                400, "ciphertext or signature version is disallowed by policy (too old)"
            )
        try:
            sealed = base64.b64decode(encoded, validate=True)
            key = AESGCM(self.versions[int(number)])
            content = key.decrypt(sealed[:12], sealed[12:], _associated(given))
        except (InvalidTag, ValueError) as error:
            raise RefusedError(400, "cipher: message authentication failed") from error
        return {"plaintext": base64.b64encode(content).decode()}


def _associated(given: Members) -> bytes:
    return base64.b64decode(given.get("associated_data", ""))


class VaultServer:
    """One Vault on a port of its own.

    Attributes:
        keys: those of the engine, by mount and name.
        tokens: which are valid.
        status: what every call is answered with instead, for example 503 when sealed.
        throttled: how many more calls are answered with 429.
        logins: how often a role logged in.
        answered: how often a call of the engine was answered.
        bodies: all that was sent to the engine.
    """

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], TransitKey] = {}
        self.tokens: set[str] = set()
        self.status: int | None = None
        self.throttled = self.logins = self.answered = 0
        self.bodies: list[str] = []
        self._port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answer, always at the same place."""
        self._server = _Server(("127.0.0.1", self._port), _handler(self.answer))
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def token(self) -> str:
        """Return a new valid token."""
        token = f"hvs.{uuid4().hex}"
        self.tokens.add(token)
        return token

    def answer(self, path: str, token: str, body: str) -> Members:
        """Return the data of an answer; ``RefusedError`` for an error."""
        if self.status is not None:
            raise RefusedError(self.status, "Vault is sealed")
        given = json.loads(body)
        match path.strip("/").split("/"):
            case ["v1", "auth", "approle", "login"]:
                return self._login(given)
            case ["v1", mount, "encrypt" | "decrypt" as action, name]:
                if token not in self.tokens:
                    raise RefusedError(403, "permission denied")
                if self.throttled:
                    self.throttled -= 1
                    raise RefusedError(429, "request path rate limit quota exceeded")
                if (mount, name) not in self.keys:
                    # To encrypt would make the key, for which the token has no right.
                    missing = (403, "permission denied"), (400, "encryption key not found")
                    raise RefusedError(*missing[action == "decrypt"])
                self.answered += 1
                self.bodies.append(body)
                key = self.keys[mount, name]
                return {"data": key.encrypt(given) if action == "encrypt" else key.decrypt(given)}
        raise RefusedError(404, "no handler for route")

    def _login(self, given: Members) -> Members:
        if {name: given.get(name) for name in ROLE} != ROLE:
            raise RefusedError(400, "invalid role or secret ID")
        self.logins += 1
        return {"auth": {"client_token": self.token()}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def _handler(answer: Callable[[str, str, str], Members]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            try:
                status, members = (
                    200,
                    answer(self.path, self.headers.get("X-Vault-Token", ""), body),
                )
            except RefusedError as error:
                status, members = error.status, {"errors": list(error.errors)}
            content = json.dumps(members).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler

"""An OpenID Connect issuer on this machine: real HTTP, real keys."""

import json
import time
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import (
    ECAlgorithm,
    OKPAlgorithm,
    RSAAlgorithm,
    get_default_algorithms,
)

AUDIENCE = "https://expunge.example/api"
DISCOVERY = "/.well-known/openid-configuration"
_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_JWK = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def private_key(algorithm: str):
    """Return a private key for an algorithm; RSA ones are slow to make, so there is one."""
    if algorithm == "RS256":
        return _RSA
    return (
        ec.generate_private_key(ec.SECP256R1())
        if algorithm == "ES256"
        else ed25519.Ed25519PrivateKey.generate()
    )


class Issuer:
    """What it publishes can be changed at any time.

    Attributes:
        documents: JSON by path; a path that is missing is a 404.
        raw: answers (status, headers, body) by path, before all documents.
        fetches: how often each path was asked for.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.private: dict[str, tuple[str, object]] = {}
        self.fetches: Counter[str] = Counter()
        self.raw: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.documents: dict[str, object] = {
            DISCOVERY: {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": []},
        }
        self.add_key("first", "RS256")

    def add_key(self, kid: str, algorithm: str) -> None:
        """Take another key and publish its public half."""
        private = private_key(algorithm)
        self.private[kid] = (algorithm, private)
        public = _JWK[algorithm].to_jwk(private.public_key(), as_dict=True)
        self.documents["/keys"]["keys"].append({**public, "kid": kid, "use": "sig"})

    def claims(self, **changed: object) -> dict[str, object]:
        """Return what a good token says, changed; None leaves a member out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "person-4711",
            "iat": now,
            "exp": now + 300,
            "scope": "openid models:read",
        }
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, *, kid: str = "first", headers: dict | None = None, **changed: object) -> str:
        """Return a signed token."""
        algorithm, private = self.private[kid]
        header = {"alg": algorithm, "kid": kid, "typ": "at+jwt", **(headers or {})}
        return signed(header, self.claims(**changed), private)


def signed(header: dict, claims: dict, private: object, *, algorithm: str | None = None) -> str:
    """Return a token with any header, which the library itself would refuse to write."""
    body = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    signer = get_default_algorithms()[algorithm or header["alg"]]
    return f"{body}.{_encoded(signer.sign(body.encode(), private))}"


def _encoded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Serve an issuer until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetches[self.path] += 1
            status, headers, body = issuer.raw.get(self.path) or _found(issuer, self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(server.server_port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _found(issuer: Issuer, path: str) -> tuple[int, dict[str, str], bytes]:
    if path not in issuer.documents:
        return 404, {}, b""
    return 200, {"Content-Type": "application/json"}, json.dumps(issuer.documents[path]).encode()

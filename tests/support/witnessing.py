"""Witnesses that run (https://c2sp.org/tlog-witness), and logs that they see."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.domain import merkle
from app.domain.errors import NoteError, ProofError
from app.evidence.certificates.note import WitnessKey, cosigned, open_checkpoint, signature_line
from app.evidence.certificates.trusted_keys import read_trusted_keys
from app.evidence.witnesses import PATH, SIZE_MEDIA_TYPE
from tests.support.patience import PATIENCE_S

TEXT = "text/plain; charset=utf-8"


class WitnessSigner:
    """Holds a witness's private key."""

    def __init__(self, name: str) -> None:
        self._private_key = Ed25519PrivateKey.generate()
        self.key = WitnessKey(name, self._private_key.public_key())

    def cosign(self, text: str, *, time_s: int) -> str:
        """Return the signature line for a checkpoint's text at a time, in seconds since 1970."""
        signature = self._private_key.sign(cosigned(text, time_s))
        return signature_line(self.key, time_s.to_bytes(8) + signature)


def witness_signer(name: str = "witness.example") -> WitnessSigner:
    """Return a fresh witness's signer."""
    return WitnessSigner(name)


class Witness:
    """Cosigns a log only if it has grown consistently since the last time."""

    def __init__(self, signer: WitnessSigner, trusted: Path) -> None:
        self._signer, self._trusted = signer, trusted
        self._size, self._root = 0, merkle.EMPTY_ROOT

    def add_checkpoint(self, content: bytes) -> tuple[int, str, str]:
        """Return status, media type and body."""
        head, _, note = content.decode().partition("\n\n")
        old, *proof = head.split("\n")
        now = datetime.now(UTC)
        keys = read_trusted_keys(self._trusted.read_bytes()).note_keys(in_use_at=now)
        try:
            checkpoint = open_checkpoint(note.encode(), keys)
        except NoteError as error:
            return 403, TEXT, f"{error}\n"
        old_size = int(old.removeprefix("old "))
        rewritten = checkpoint.size == self._size and checkpoint.root != self._root
        if old_size != self._size or rewritten:
            return 409, SIZE_MEDIA_TYPE, f"{self._size}\n"
        try:
            merkle.verify_consistency(
                old_size=self._size,
                old_root=self._root,
                new_size=checkpoint.size,
                new_root=checkpoint.root,
                proof=[base64.b64decode(hashed) for hashed in proof],
            )
        except ProofError as error:
            return 422, TEXT, f"{error}\n"
        self._size, self._root = checkpoint.size, checkpoint.root
        return 200, TEXT, self._signer.cosign(checkpoint.text(), time_s=int(now.timestamp()))


@contextmanager
def serving(signer: WitnessSigner, trusted: Path) -> Iterator[str]:
    """Run a witness; yield its URL."""
    witness = Witness(signer, trusted)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == PATH
            content = self.rfile.read(int(self.headers["Content-Length"]))
            status, media_type, text = witness.add_checkpoint(content)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)
        server.server_close()

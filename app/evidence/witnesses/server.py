"""A witness over HTTP on Python's own server; needs a TLS proxy in front."""

import re
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from app.domain.errors import VerificationError
from app.evidence.witnesses.submission import MAX_BYTES, PATH
from app.evidence.witnesses.witness import Reply, Witness

_TIMEOUT_S: Final = 10.0
_MOST_AT_ONCE: Final = 32
_DISCARDED_CHUNKS: Final = 64
_CHUNK_BYTES: Final = 2**16
_LENGTH = re.compile(r"[0-9]{1,9}", re.ASCII)


class WitnessServer(ThreadingHTTPServer):
    """Serves one witness, drops slow clients, and limits the number of connections."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], witness: Witness) -> None:
        super().__init__(address, _Handler)
        self.witness = witness
        self.places = threading.BoundedSemaphore(_MOST_AT_ONCE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "expunge-witness"
    sys_version = ""
    timeout = _TIMEOUT_S
    server: WitnessServer

    def handle(self) -> None:
        """Serve the connection if the limit allows it."""
        if not self.server.places.acquire(blocking=False):
            return
        try:
            super().handle()
        except ConnectionError:
            pass
        finally:
            self.server.places.release()

    def do_POST(self) -> None:
        """Answer ``add-checkpoint``."""
        if self.path != PATH:
            self._refuse(Reply(HTTPStatus.NOT_FOUND, "only add-checkpoint is served here\n"))
            return
        length = self.headers.get("Content-Length", "")
        if (
            "Transfer-Encoding" in self.headers
            or _LENGTH.fullmatch(length) is None
            or int(length) > MAX_BYTES
        ):
            self._refuse(Reply(HTTPStatus.BAD_REQUEST, "Content-Length is missing or too large\n"))
            return
        try:
            reply = self.server.witness.add_checkpoint(self.rfile.read(int(length)))
        except (OSError, VerificationError):
            self.close_connection = True
            reply = Reply(HTTPStatus.SERVICE_UNAVAILABLE, "the witness cannot read its files\n")
        self._send(reply)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - set by the base class
        """Log nothing about callers."""

    def _refuse(self, reply: Reply) -> None:
        """Answer before the body is read, and discard some of it: a reset would lose the answer."""
        self.close_connection = True
        self._send(reply)
        self.connection.shutdown(socket.SHUT_WR)
        for _ in range(_DISCARDED_CHUNKS):
            if not self.rfile.read1(_CHUNK_BYTES):
                return

    def _send(self, reply: Reply) -> None:
        body = reply.body.encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.media_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:  # a client that is not told may send its next call into the end
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

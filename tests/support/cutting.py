"""A way to a server that breaks once."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def cutting_proxy(endpoint: str, *, after_bytes: int) -> Iterator[str]:
    """Give a URL of the server whose connection is cut once, after so many bytes of answers."""
    proxy = _Proxy(endpoint, after_bytes)
    threading.Thread(target=proxy.accept, daemon=True).start()
    yield proxy.url
    proxy.stop()
    assert proxy.left <= 0, "the connection was never cut"


class _Proxy:
    def __init__(self, endpoint: str, after_bytes: int) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.left = after_bytes

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                for pump, pair in ((self._ask, (caller, server)), (self._answer, (server, caller))):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _ask(self, caller: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := caller.recv(65536):
                server.sendall(data)
        _hang_up(caller, server)

    def _answer(self, server: socket.socket, caller: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                was_whole = self.left > 0
                self.left -= len(data)
                if was_whole and self.left <= 0:
                    break
                caller.sendall(data)
        _hang_up(caller, server)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

"""The API's server: its limits, and its end by the signal that stops it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.cli.application import server_options
from app.runtime.settings import Settings
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve

PROGRAM = """
import signal
import sys
from pathlib import Path
import uvicorn
from app.cli.application import run
from app.runtime import spans

class Sender:
    def send(self, span):
        pass

    def close(self):
        print("sent", flush=True)

async def app(scope, receive, send):
    message = await receive()
    await send({"type": message["type"] + ".complete"})
    spans.send_by(Sender)
    spans.hand_over(lambda: [spans.span_of_request("request", begun_ns=0, state="completed")])
    Path(sys.argv[1]).touch()

# What runs in the background of a shell is started without the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
run(uvicorn.Server(uvicorn.Config(app, port=0, log_config=None)))
print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_last_spans_are_sent_before_the_process_ends(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "started")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until((tmp_path / "started").exists)
    process.send_signal(number)
    told, complaints = process.communicate(timeout=PATIENCE_S)
    assert (told, complaints) == (b"sent\n", b"")
    assert process.returncode == -number


async def _empty(scope: dict, receive: Callable, send: Callable) -> None:
    message = await receive()
    if scope["type"] == "lifespan":
        await send({"type": message["type"] + ".complete"})
        return
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture
def address(settings: Settings) -> Iterator[tuple[str, int]]:
    """Where a server listens that is limited as the API's is, to few connections."""
    few = settings.model_copy(update={"max_connections": 1})
    with serve(_empty, **server_options(few)) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def _status(address: tuple[str, int], *heads: bytes) -> list[int]:
    statuses = []
    with socket.create_connection(address, PATIENCE_S) as caller:
        for head in heads:
            caller.sendall(head)
            statuses.append(int(caller.recv(65536).split()[1]))
    return statuses


def _head(size: int) -> bytes:
    begun = b"GET / HTTP/1.1\r\nHost: x\r\nX-Filled: "
    return begun + b"x" * (size - len(begun) - 4) + b"\r\n\r\n"


def test_heads_are_limited_and_a_connection_takes_several(address: tuple[str, int]) -> None:
    assert _status(address, _head(100), _head(16_000)) == [204, 204]
    assert _status(address, b"GET / HTTP/1.1\r\nX-Filled: " + b"x" * 17_000) == [400]


def test_connections_are_limited(address: tuple[str, int]) -> None:
    with ExitStack() as held:
        for _ in range(64):
            held.enter_context(socket.create_connection(address, PATIENCE_S))
        until(lambda: _status(address, _head(100)) == [503])
    until(lambda: _status(address, _head(100)) == [204])

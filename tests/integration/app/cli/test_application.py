"""What the API tells its operator when it starts, its limits, and its end by a signal."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.cli import application as main
from app.cli.application import server_options
from app.domain.errors import ConfigurationError
from app.runtime.database import Database
from app.runtime.database.engine import require_none
from app.runtime.locations import is_key_store_apart, key_store_dir
from app.runtime.settings import Settings
from tests.support.patience import PATIENCE_S, until
from tests.support.serving import serve

WARNING = "the key store lies in the data directory"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture):
    def start() -> bool:
        caplog.clear()
        main.app_from_environment().state.services.database.dispose()
        told = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
        assert all("EXPUNGE_KEY_STORE_DIR" in line for line in told)
        return bool(told)

    return start


@pytest.mark.parametrize("environment", ["production", "development", "test"])
def test_keys_beside_the_objects_are_warned_of_in_production(
    settings: Settings, warned, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setenv("EXPUNGE_ENVIRONMENT", environment)
    assert warned() == (environment == "production")


def test_a_key_store_of_its_own_is_not_warned_of(
    settings: Settings, warned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXPUNGE_ENVIRONMENT", "production")
    apart = tmp_path / "keys-of-data"
    key_store_dir(settings).rename(apart)
    monkeypatch.setenv("EXPUNGE_KEY_STORE_DIR", str(apart))
    assert not warned()


def test_a_link_counts_for_where_it_leads(settings: Settings, tmp_path: Path) -> None:
    inside = settings.data_dir / "keys" / "blobs"
    link = tmp_path / "link"
    link.symlink_to(inside)
    assert not is_key_store_apart(settings.model_copy(update={"key_store_dir": link}))
    apart = tmp_path / "apart"
    inside.rename(apart)
    inside.symlink_to(apart)
    assert is_key_store_apart(settings)
    sibling = settings.data_dir.with_name(settings.data_dir.name + "-keys")
    assert is_key_store_apart(settings.model_copy(update={"key_store_dir": sibling}))


def test_it_says_at_the_database_that_it_runs(settings: Settings, database_url: str) -> None:
    api = main.app_from_environment().state.services.database
    others = Database(database_url)
    with pytest.raises(ConfigurationError, match="the service runs: API"):
        require_none(others)
    api.dispose()
    require_none(others)


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

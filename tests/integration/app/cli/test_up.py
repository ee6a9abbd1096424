"""``expunge up`` where it cannot run: it says why in one line, and changes nothing."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.commands.service import _warn_without_servers
from app.cli.main import app
from app.runtime.embedded import EmbeddedServers
from app.runtime.embedded.home import claimed
from app.runtime.settings import Settings

runner = CliRunner()


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port in use."""
    for name in ("EXPUNGE_DATABASE_URL", "EXPUNGE_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EXPUNGE_DATA_DIR", str(tmp_path / "data"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _refused(*command: str) -> str:
    answer = runner.invoke(app, command or ["up"])
    assert answer.exit_code == 1
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_port_in_use(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("EXPUNGE_PORT", str(port))
    assert f"port {port} (EXPUNGE_HOST, EXPUNGE_PORT): Address already in use" in _refused(command)
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_HOST", "192.0.2.1")
    assert "EXPUNGE_HOST" in _refused()
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_PORT", "0")
    with claimed(tmp_path / "data"):
        assert f"used by another expunge, process {os.getpid()}" in _refused()
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["service.lock"]


@pytest.mark.parametrize("command", ["up", "serve", "worker", "dispatcher", "init", "requests"])
def test_a_misspelt_setting(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("EXPUNGE_PROT", str(port))
    assert _refused(command) == (
        "error: EXPUNGE_PROT: there is no such setting; did you mean EXPUNGE_PORT?"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["signing-key", "rotate"],
        ["storage", "check"],
        ["reconcile"],
        ["requests"],
        ["model", "list"],
    ],
)
def test_a_directory_without_a_service(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A second service, made by following advice in the wrong folder, would be empty."""
    monkeypatch.delenv("EXPUNGE_API_KEY", raising=False)
    monkeypatch.setenv("EXPUNGE_DATA_DIR", "data")
    monkeypatch.chdir(tmp_path)
    told = _refused(*command)
    assert told.startswith(f"error: {tmp_path / 'data'}")
    assert "set EXPUNGE_DATA_DIR to its data directory" in told
    assert not (tmp_path / "data").exists()


def test_a_part_alone_says_which_command_runs_its_servers(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_without_servers(Settings())
    assert "waiting for the embedded PostgreSQL, which 'expunge up' runs" in caplog.text


def test_init_leaves_no_server_behind(port: int, tmp_path: Path) -> None:
    postgres = EmbeddedServers(tmp_path / "data").postgres
    try:
        assert runner.invoke(app, ["init"]).exit_code == 0
        assert not postgres.running()
        assert runner.invoke(app, ["signing-key", "list"]).exit_code == 0
        with claimed(tmp_path / "data"):
            assert "PostgreSQL does not answer" in _refused("signing-key", "list")
    finally:
        postgres.stop()

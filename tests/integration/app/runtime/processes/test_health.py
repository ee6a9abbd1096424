"""Health checks, of processes that look like the parts they stand for, and of a real API."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.application import create_app
from app.runtime.processes import health
from app.runtime.processes.starting import python_command
from app.services import Services
from tests.support.patience import until
from tests.support.service import free_port
from tests.support.serving import serve

SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a worker's command line and this test's settings."""
    monkeypatch.setenv("EXPUNGE_DATA_DIR", str(tmp_path))
    process = subprocess.Popen(
        [*SLEEPING, *python_command("workers", "worker")[-3:]], env=os.environ.copy()
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MIN_AGE_S", 0.0)


@pytest.mark.usefixtures("patient", "worker")
def test_a_part_that_lives_is_well_and_another_is_not() -> None:
    until(lambda: health.is_well("worker"))
    assert not health.is_well("dispatcher")


@pytest.mark.usefixtures("worker")
def test_one_that_was_just_started_is_not_well_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MIN_AGE_S", 3600.0)
    assert not health.is_well("worker")


@pytest.mark.usefixtures("patient")
def test_one_that_ended_is_not_well_though_nobody_has_waited_for_it(
    worker: subprocess.Popen[bytes],
) -> None:
    until(lambda: health.is_well("worker"))
    worker.kill()
    until(lambda: not health.is_well("worker"))


@pytest.mark.usefixtures("patient", "worker")
def test_another_services_worker_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    until(lambda: health.is_well("worker"))
    monkeypatch.setenv("EXPUNGE_DATA_DIR", "/elsewhere")
    assert not health.is_well("worker")


def test_an_api_is_asked(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(create_app(services)) as url:
        monkeypatch.setenv("EXPUNGE_PORT", url.rpartition(":")[2])
        assert health.is_well("api")
    assert not health.is_well("api")


@pytest.mark.parametrize(("words", "code"), [(["api"], 1), (["everything"], 1), ([], 1)])
def test_its_exit_code_says_it(words: list[str], code: int) -> None:
    environment = os.environ | {"EXPUNGE_PORT": str(free_port())}
    ended = subprocess.run(
        [sys.executable, "-m", "app.runtime.processes.health", *words],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == code

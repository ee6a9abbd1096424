"""The supervisor with real children, in a process of its own."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from app.runtime.processes.supervisor import Backoff
from tests.support.command_lines import words_of
from tests.support.patience import PATIENCE_S, until
from tests.support.service import is_alive

REPOSITORY = Path(__file__).parents[5]
PROGRAM = """
import sys
from app.runtime import logs
from app.domain.errors import ConfigurationError
from app.runtime.processes.stopping import StopSignal
from app.runtime.processes.supervisor import Child, supervise

attempts = []

def keep_up():
    attempts.append(1)
    if len(attempts) < 4:
        raise ConfigurationError("PostgreSQL does not start")
    if len(attempts) == 4:
        raise ValueError("record-17")

logs.configure()
child = Child("child", [sys.executable, "-c", sys.argv[1]])
supervise([Child("broken", ["/nonexistent"]), child], StopSignal().listen(), keep_up=keep_up)
"""
OBEDIENT = "import time; time.sleep(60)"
SUPERVISED = """
import time
from app.runtime.processes.supervisor import stop_with_supervisor
stop_with_supervisor()
time.sleep(60)
"""


@pytest.fixture
def supervise():
    started = []

    def start(child):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, child],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def child_of(process):
    children = psutil.Process(process.pid).children
    return until(lambda: next(c for c in children() if is_alive(c) and "-c" in words_of(c)))


def logged_until(process, words):
    """Return what a supervisor logs until a line has these words."""
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            break
    patience.cancel()
    return "".join(lines)


def test_a_child_that_ends_is_started_again(supervise):
    process = supervise(OBEDIENT)
    first = child_of(process)
    first.kill()
    first.wait(PATIENCE_S)
    assert child_of(process).pid != first.pid


def test_what_cannot_be_started_is_tried_again_and_holds_nothing_up(supervise):
    process = supervise(OBEDIENT)
    child_of(process)
    logged = logged_until(process, "ValueError")
    assert process.poll() is None
    process.terminate()
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert logged.count("PostgreSQL does not start") == 1
    assert "ValueError" in logged
    assert "record-17" not in logged + rest


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_told_to_stop_it_stops_its_children(supervise, number):
    process = supervise(OBEDIENT)
    child = child_of(process)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == 0
    assert not child.is_running()


def test_a_child_ends_when_its_supervisor_was_killed(supervise, tmp_path):
    ready = tmp_path / "ready"
    process = supervise(SUPERVISED.replace("time.sleep", f"open({str(ready)!r}, 'w'); time.sleep"))
    child = child_of(process)
    until(ready.exists)
    process.kill()
    process.wait()
    until(lambda: not is_alive(child))


def test_without_a_supervisor_a_process_goes_on():
    with subprocess.Popen([sys.executable, "-c", SUPERVISED], cwd=REPOSITORY) as process:
        time.sleep(1.5)
        assert process.poll() is None
        process.kill()


class Crasher:
    """A process that ends some seconds after each start, under a clock of its own."""

    def __init__(self):
        self.backoff, self.now = Backoff(), 1000.0

    def waits_after(self, ran_s):
        """Start it, let it run, and return how long it then has to wait."""
        assert self.backoff.is_due(self.now)
        self.backoff.note_start(self.now)
        self.now += ran_s
        assert self.backoff.note_end(self.now)
        assert not self.backoff.note_end(self.now + 0.5)
        waited = 0.0
        while not self.backoff.is_due(self.now):
            self.now, waited = self.now + 0.5, waited + 0.5
        return waited


def test_a_child_that_keeps_ending_is_started_less_and_less_often():
    crasher = Crasher()
    assert [crasher.waits_after(0.3) for _ in range(8)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_child_that_has_run_a_while_is_started_at_once_and_begins_anew():
    crasher = Crasher()
    assert [crasher.waits_after(0.3) for _ in range(4)] == [1, 2, 4, 8]
    assert crasher.waits_after(10.0) == 0
    assert crasher.waits_after(9.9) == 1


def test_a_crashing_child_is_started_again_after_a_while(supervise):
    process = supervise("raise SystemExit(3)")
    logged = logged_until(process, " in 2 s")
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    delays = [line.rsplit(" in ", 1)[1] for line in logged.splitlines() if " in " in line]
    assert delays == ["1 s", "2 s"]

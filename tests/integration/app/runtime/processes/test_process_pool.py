"""A pool's processes: limits of time and memory, calls that nobody waits for, nothing to steal."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.domain.checks import require_positive
from app.domain.errors import OverloadedError, ParameterError, TooCostlyError
from app.runtime.processes.process_pool import ProcessPool
from tests.support.patience import PATIENCE_S, until

FOREVER_S = 3600.0


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    made = _pool()
    yield made
    made.close()


def _pool(*, waiting: int = 1, time_limit_s: float = FOREVER_S) -> ProcessPool:
    return ProcessPool(
        "work",
        size=1,
        waiting=waiting,
        time_limit_s=time_limit_s,
        memory_bytes=256 << 20,
        preload="json",
    )


def _busy(pid: int) -> bool:
    """Say whether a process of the pool is in the midst of a call."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_calls_run_elsewhere_one_after_the_other(pool: ProcessPool) -> None:
    first = pool.call(None, os.getpid)
    assert first != os.getpid()
    assert pool.call(None, os.getpid) == first


def test_errors_of_ours_come_back_whole_and_others_without_what_they_quote(
    pool: ProcessPool,
) -> None:
    with pytest.raises(ParameterError, match="rate must be above 0") as refused:
        pool.call(None, require_positive, "rate", -1.0)
    assert (refused.value.name, refused.value.allowed) == ("rate", "above 0")
    with pytest.raises(RuntimeError) as failed:
        pool.call(None, int, "a person's name")
    assert str(failed.value) == "ValueError in builtins"


def test_a_call_that_takes_too_long_is_ended_and_the_next_one_works() -> None:
    pool = _pool(time_limit_s=1.0)
    first = pool.call(None, os.getpid)
    with pytest.raises(TooCostlyError, match="longer than the 1 s"):
        pool.call(None, time.sleep, FOREVER_S)
    assert not psutil.pid_exists(first)
    assert pool.call(None, os.getpid) != first
    pool.close()


def test_a_call_that_takes_too_much_memory_is_ended(pool: ProcessPool) -> None:
    with pytest.raises(TooCostlyError, match="memory"):
        pool.call(None, bytes, 1 << 30)
    assert len(pool.call(None, bytes, 1000)) == 1000


def test_work_ends_with_its_caller(pool: ProcessPool) -> None:
    process, left = pool.call(None, os.getpid), threading.Event()
    threading.Timer(0.2, left.set).start()
    with pytest.raises(OverloadedError, match="left"):
        pool.call(left, time.sleep, FOREVER_S)
    assert not psutil.pid_exists(process)
    assert pool.call(None, os.getpid) != process


def test_those_who_wait_are_so_many_and_no_more(pool: ProcessPool) -> None:
    ended: list[BaseException] = []

    def call() -> None:
        try:
            pool.call(None, time.sleep, FOREVER_S)
        except OverloadedError as error:
            ended.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: pool._places._value == 0)
    with pytest.raises(OverloadedError, match="busy"):
        pool.call(None, os.getpid)

    pool.close()

    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ended) == 2
    with pytest.raises(OverloadedError, match="stopping"):
        pool.call(None, os.getpid)


def test_a_process_that_was_killed_from_outside_is_replaced(pool: ProcessPool) -> None:
    process = pool.call(None, os.getpid)
    os.kill(process, signal.SIGKILL)
    until(lambda: not _busy(process))
    with suppress(OverloadedError):  # "repeat the call": its last threads may still be ending
        pool.call(None, os.getpid)
    assert pool.call(None, os.getpid) != process


def test_processes_hold_no_secret_of_the_server(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with (tmp_path / "key").open("wb") as key:
        os.set_inheritable(key.fileno(), True)
        environment = pool.call(None, Path.read_bytes, Path("/proc/self/environ"))
        files = pool.call(None, os.listdir, "/proc/self/fd")
    assert b"PYTHONPATH=" in environment
    assert b"secret" not in environment
    # Three that lead nowhere, the pipe, and the directory that is being read.
    assert len(files) == 5
    assert pool.call(None, resource.getrlimit, resource.RLIMIT_CORE)[1] <= 1


_SERVER = """
import threading, time
from app.runtime.processes.process_pool import ProcessPool
import os
pool = ProcessPool("work", size=2, waiting=0, time_limit_s=3600, memory_bytes=1 << 28,
                   preload="json")
pids = [pool.call(None, os.getpid)]
threading.Thread(target=pool.call, args=(None, time.sleep, 3600), daemon=True).start()
while pool._idle.qsize() == 2:
    time.sleep(0.02)
print(pids[0], pool.call(None, os.getpid), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(3600)", ""], ids=["killed", "at its end"])
def test_processes_end_with_their_server_at_work_or_not(end: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER.format(end=end)], stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    processes = [int(pid) for pid in server.stdout.readline().split()]
    assert len(set(processes)) == 2
    if end:
        assert all(map(_busy, processes))
        server.kill()
    server.wait()
    until(lambda: not any(map(_busy, processes)))

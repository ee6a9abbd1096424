"""What every process of the service is made before it reads anything secret."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from rq import Worker
from rq.serializers import JSONSerializer

from app.runtime.embedded import EmbeddedServers
from app.runtime.locations import redis_connection
from app.runtime.processes.hardening import harden, may_lock_memory
from app.services import Services
from tests.support.command_lines import line_of
from tests.support.patience import PATIENCE_S, until
from tests.support.service import free_port, kill
from workers.queue import NAME
from workers.worker import RunWorker

REPOSITORY = Path(__file__).parents[5]
PR_GET_DUMPABLE = 3
CONFESSING = """
import atexit, ctypes, os, threading, time
path = os.path.join(os.environ["CONFESSIONS"], str(os.getpid()))
def note():
    whole = f"{path}.{threading.get_ident()}"
    with open(whole, "w") as file:
        file.write(str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)))
    os.replace(whole, path)
def go_on():
    while True:
        note()
        time.sleep(0.1)
atexit.register(note)
threading.Thread(target=go_on, daemon=True).start()
"""
"""As ``sitecustomize``: each Python writes whether it is dumpable to a file named by its id.

The file appears whole: the thread may end at any instruction when its process does.
"""
UVICORN = (
    "uvicorn",
    "--factory",
    "app.cli.application:app_from_environment",
    "--workers",
    "2",
    "--port",
)
LASTING = {
    "api": ("app.cli", "serve"),
    "api with uvicorn's workers": (*UVICORN, "0"),
    "dispatcher": ("workers", "dispatcher"),
    "worker": ("workers", "worker"),
    "supervisor": ("app.cli", "dispatcher"),
}
PASSING = {
    "command": ("app.cli", "log", "checkpoint"),
    "command that holds keys": ("app.cli", "signing-key", "list"),
    "health check": ("app.runtime.processes.health", "api"),
}


def _all_but_one_slow(kinds, fast):
    """Return the kinds as parameters: each starts a process and waits for what it confesses."""
    return [fast, *(pytest.param(kind, marks=pytest.mark.slow) for kind in kinds if kind != fast)]


def in_a_child(work):
    """Return what ``work`` returns in a forked child, by way of JSON."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def state():
    return {
        "core": max(resource.getrlimit(resource.RLIMIT_CORE)),
        "dumpable": ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
        "locked_kb": locked_kb(os.getpid()),
        "bytecode": not sys.dont_write_bytecode,
        "cuda_cache": os.environ.get("CUDA_CACHE_DISABLE") != "1",
    }


def locked_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmLck")).split()[1])


def core_limits(pid: int) -> set[str]:
    """Return the soft and the hard limit of a process on core files, in bytes."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Max core file size"))
    return set(line.split()[4:6])


def leaves_no_core(pid: int) -> bool:
    return core_limits(pid) <= {"0", "1"}


def dumped(pid: int) -> bool:
    """Say whether our child, which we have killed, left a core."""
    return os.WCOREDUMP(os.waitpid(pid, 0)[1])


@pytest.fixture
def with_cores(tmp_path: Path) -> Iterator[Path]:
    """Let processes that are started from now on dump core, as large as they like."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    folder = tmp_path / "crashes"
    folder.mkdir()
    plain = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"], cwd=folder)
    shows = dumped(plain.pid)
    yield folder
    resource.setrlimit(resource.RLIMIT_CORE, before)
    if not shows:
        pytest.skip("nothing dumps core here: the limits alone were looked at")


@pytest.fixture
def start(
    tmp_path: Path, services: Services, with_cores: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a Python module that says whether it is dumpable."""
    (tmp_path / "sitecustomize.py").write_text(CONFESSING)
    (tmp_path / "confessions").mkdir()
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}:{REPOSITORY}",
        "CONFESSIONS": str(tmp_path / "confessions"),
        "EXPUNGE_PORT": str(free_port()),
    }
    started = []

    def run(*module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *module]
        started.append(subprocess.Popen(command, cwd=with_cores, env=environment))
        return started[-1]

    yield run
    for process in started:
        if process.returncode is None and psutil.pid_exists(process.pid):
            ours = psutil.Process(process.pid)
            kill([ours, *ours.children(recursive=True)])


def confession(folder: Path, pid: int) -> str:
    path = folder / "confessions" / str(pid)
    return path.read_text() if path.exists() else ""


def test_a_hardened_process_leaves_nothing_to_look_at():
    def work():
        harden()
        harden()
        return state()

    found = in_a_child(work)
    assert found["core"] <= 1
    assert found["dumpable"] == 0
    if may_lock_memory():
        assert found["locked_kb"] > 0


def test_a_limit_that_is_lower_already_stays():
    def work():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        harden()
        return state()

    assert in_a_child(work)["core"] == 0


def test_a_process_that_may_not_lock_its_memory_works_all_the_same():
    def work():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
        if os.geteuid() == 0:
            os.setuid(65534)
        refused = not may_lock_memory()
        harden()
        return refused, len(bytes(1 << 24)), state()

    refused, allocated, found = in_a_child(work)
    assert refused
    assert allocated == 1 << 24
    assert found["dumpable"] == 0


def test_the_child_of_a_worker_is_hardened_before_its_job(services, monkeypatch):
    connection = redis_connection(services.settings)
    worker = RunWorker([NAME], connection=connection, serializer=JSONSerializer)

    def work():
        seen = []
        monkeypatch.setattr(Worker, "main_work_horse", lambda *_: seen.append(state()))
        worker.main_work_horse(None, None)
        return seen

    (found,) = in_a_child(work)
    assert found["dumpable"] == 0
    assert found["core"] <= 1
    assert not found["bytecode"]
    assert not found["cuda_cache"]
    if may_lock_memory():
        assert found["locked_kb"] > 0


@pytest.mark.parametrize("kind", _all_but_one_slow(LASTING, "worker"))
def test_no_process_that_lasts_can_be_looked_into_or_dumps_core(
    kind: str,
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    with_cores: Path,
) -> None:
    process = psutil.Process(start(*LASTING[kind]).pid)
    if kind == "supervisor":
        until(process.children)
    if "uvicorn" in kind:
        # Its supervisor is uvicorn's own, and holds nothing.
        until(lambda: len(process.children()) >= 2)
        secretive = [p for p in process.children() if "spawn_main" in line_of(p)]
    else:
        secretive = [process, *process.children()]
    assert secretive
    for one in secretive:
        until(lambda one=one: confession(tmp_path, one.pid) == "0")
        assert leaves_no_core(one.pid)
        assert locked_kb(one.pid) > 0 or not may_lock_memory()
    before = set(with_cores.iterdir())
    for one in reversed(secretive):
        one.send_signal(signal.SIGABRT if one.pid % 2 else signal.SIGSEGV)
        if one == process:
            assert not dumped(one.pid)
        else:
            until(lambda one=one: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE)
    kill([p for p in secretive if p.is_running()])
    assert set(with_cores.iterdir()) == before


@pytest.mark.parametrize("kind", _all_but_one_slow(PASSING, "health check"))
def test_no_process_that_passes_can_be_looked_into(
    kind: str, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = start(*PASSING[kind])
    process.wait(PATIENCE_S)
    assert confession(tmp_path, process.pid) == "0"


@pytest.mark.slow
def test_embedded_servers_dump_no_core(tmp_path: Path, with_cores: Path) -> None:
    environment = os.environ | {"EXPUNGE_DATA_DIR": str(tmp_path / "data")}
    for name in ("EXPUNGE_DATABASE_URL", "EXPUNGE_REDIS_URL"):
        environment.pop(name, None)
    environment["EXPUNGE_PORT"] = str(free_port())
    up = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "up"],
        cwd=with_cores,
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
    )
    servers = EmbeddedServers(tmp_path / "data")
    try:
        until(servers.redis.running)
        redis, postgres = servers.redis.pid(), servers.postgres.pid()
        assert redis
        assert postgres
        processes = [psutil.Process(pid) for pid in (redis, postgres)]
        processes += processes[1].children(recursive=True)
        assert len(processes) > 4
        assert all(leaves_no_core(process.pid) for process in processes)
        before = core_files(tmp_path)
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGSEGV)
        until(lambda: not processes[0].is_running() and not processes[1].is_running())
        assert core_files(tmp_path) == before
    finally:
        up.terminate()
        up.wait(PATIENCE_S)
        servers.stop()


def core_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("core*") if path.is_file()}

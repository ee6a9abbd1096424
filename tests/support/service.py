"""``expunge up`` as a user runs it, in processes that tests may kill."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

from app.client import ExpungeClient
from app.runtime.database import Database
from app.runtime.embedded import EmbeddedServers
from app.runtime.settings import Settings
from tests.support.command_lines import line_of
from tests.support.patience import PATIENCE_S, until
from tests.support.points import Points
from tests.support.slow import FACTORY

Result = TypeVar("Result")

LEASE_S = 5
_REPOSITORY = Path(__file__).parents[2]
PARTS = ("api", "dispatcher", "worker")
_MODULES = {"api": "app.cli serve", "dispatcher": "workers dispatcher", "worker": "workers worker"}


class Service:
    """One data directory and the processes over it."""

    def __init__(self, data_dir: Path, **environment: str) -> None:
        self.data_dir = data_dir
        self.servers = EmbeddedServers(data_dir)
        self.log = data_dir.with_suffix(".log")
        self.url = f"http://127.0.0.1:{free_port()}"
        self._extra = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.points = Points(data_dir.with_suffix(".points"))
        self.temporary = data_dir.with_suffix(".tmp")
        self.temporary.mkdir(exist_ok=True)

    def start(self) -> None:
        """Start the service and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", "up"],
                cwd=_REPOSITORY,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until(lambda: httpx.get(f"{self.url}/readyz", timeout=PATIENCE_S).status_code == 200)

    def stop(self) -> int:
        """Stop the service with SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def discard(self) -> None:
        """Leave nothing behind, whatever a test has done."""
        kill(self.processes())
        if self.process is not None:
            self.process.wait()
        self.servers.stop()

    def client(self) -> ExpungeClient:
        key = Settings(data_dir=self.data_dir).admin_key_file.read_text()
        return ExpungeClient(self.url, key)

    def processes(self) -> list[psutil.Process]:
        """Return every live process of the service but the embedded servers."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def part(self, name: str) -> psutil.Process:
        """Return the process of a part, once it is there."""
        assert self.process is not None
        parent = psutil.Process(self.process.pid)
        return until(
            lambda: next(
                child for child in parent.children() if line_of(child).endswith(_MODULES[name])
            )
        )

    def parts(self) -> list[int]:
        """Return the process ids of all parts."""
        return [self.part(name).pid for name in PARTS]

    @contextmanager
    def unsupervised(self) -> Iterator[None]:
        """Keep the supervisor from starting anything again for a while."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def database(self) -> Iterator[Database]:
        database = Database(self.servers.database_url)
        try:
            yield database
        finally:
            database.dispose()

    @contextmanager
    def second_worker(self) -> Iterator[psutil.Process]:
        """Have another worker for a while, as on another machine."""
        process = self.start_worker()
        worker = psutil.Process(process.pid)
        try:
            yield worker
        finally:
            kill([worker, *worker.children(recursive=True)])
            process.wait()

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start another worker, which the supervisor knows nothing of."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "workers", "worker"],
                cwd=_REPOSITORY,
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def frozen(self, number: int = 1) -> list[psutil.Process]:
        """Return the processes that stand still at a point, once there are so many."""
        return until(lambda: len(found := self.standing_still()) >= number and found)

    def standing_still(self) -> list[psutil.Process]:
        """Return the processes that stand still at a point."""
        return [p for p in self.processes() if p.status() == psutil.STATUS_STOPPED]

    def environment(self) -> dict[str, str]:
        """Return the environment of every process of the service."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EXPUNGE_")}
        return environment | {
            "EXPUNGE_DATA_DIR": str(self.data_dir),
            "EXPUNGE_PORT": self.url.rpartition(":")[2],
            "EXPUNGE_LEASE_S": str(LEASE_S),
            "EXPUNGE_ENVIRONMENT": "test",
            "EXPUNGE_TEST_POINTS": str(self.points.directory),
            "TMPDIR": str(self.temporary),
            # Threads that wait for each other suffer most where tests of others run too.
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(_REPOSITORY / "tests/support/fair"), str(_REPOSITORY)]
            ),
            "EXPUNGE_ALLOWED_FACTORIES": json.dumps([FACTORY]),
            **self._extra,
        }

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("EXPUNGE_DATA_DIR") == str(self.data_dir)
        except psutil.AccessDenied:
            # Hardened processes show their variables to root alone; descent is no secret.
            return self.process is not None and any(
                parent.pid == self.process.pid for parent in [process, *process.parents()]
            )
        except psutil.Error:
            return False


@contextmanager
def running(data_dir: Path, **environment: str) -> Iterator[Service]:
    """Run a service, and leave nothing of it behind."""
    service = Service(data_dir, **environment)
    try:
        service.start()
        yield service
    finally:
        service.discard()


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes with SIGKILL and wait until they are gone."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    until(lambda: not any(is_alive(process) for process in processes))


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process runs; one that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """Return a port below those that the system gives to outgoing connections."""
    for port in random.sample(range(10_000, 30_000), 1000):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")

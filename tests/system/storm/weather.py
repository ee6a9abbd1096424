"""What goes wrong while the callers call: one thing after the other, drawn from a seed."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

import httpx
import psutil
from redis import Redis, RedisError

from app.client import ApiError
from tests.support.command_lines import words_of
from tests.support.flood import flood
from tests.support.people import People
from tests.support.service import PARTS, Service, kill
from tests.system.storm.callers import NEWCOMERS
from tests.system.storm.scene import DOOMED, IMPORTED, Crowd

SHORTEST_S, LONGEST_S = 0.5, 4.0
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 0.3, 5.0
_FLOOD_PER_S, _FLOOD_S = 400, 2.0
_CALL = b"GET /v1/models HTTP/1.1\r\nHost: storm\r\nConnection: close\r\n\r\n"


class Weather:
    """The faults of one storm over a service with two workers.

    Args:
        service: started, and started again where a fault needs it.
        rng: decides what comes next.
        url: of rows that are imported.
        doomed: of the dataset that is destroyed.
    """

    def __init__(self, service: Service, rng: Random, url: str, doomed: Crowd) -> None:
        self._service = service
        self._url = url
        self._doomed = doomed
        self._rng = rng
        self._second: subprocess.Popen[bytes] | None = None
        self.counts: Counter[str] = Counter()
        self._kinds: dict[Callable[[], None], int] = {
            self._kill_worker: 4,
            self._kill_second_worker: 3,
            self._kill_run: 5,
            self._kill_part: 4,
            self._freeze: 6,
            self._wipe_redis: 3,
            self._kill_redis: 1,
            self._kill_postgres: 2,
            self._kill_supervisor: 1,
            self._import: 4,
            self._flood: 3,
            self._push_and_train: 6,
            self._destroy: 1,
        }

    def blow(self, seconds: float) -> None:
        """Have faults for so long: a destruction and a rotation of the signing key, and others."""
        began = time.monotonic()
        certain = {self._destroy: 0.3, self._rotate: 0.5}
        while (elapsed := time.monotonic() - began) < seconds:
            self._keep_second_worker()
            due = [each for each, share in certain.items() if elapsed > share * seconds]
            if due:
                del certain[due[0]]
                self._count(due[0])
            else:
                kinds, weights = zip(*self._kinds.items(), strict=True)
                self._count(self._rng.choices(kinds, weights)[0])
            time.sleep(self._rng.uniform(SHORTEST_S, LONGEST_S))

    def calm(self) -> None:
        """Let everything run, with two workers."""
        for process in self._service.standing_still():
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self._keep_second_worker()

    def end(self) -> None:
        """Stop the second worker."""
        if self._second is not None:
            self._kill_second_worker()
            self._second = None

    def _count(self, fault: Callable[[], None]) -> None:
        self.counts[fault.__name__.strip("_").replace("_", " ")] += 1
        with suppress(psutil.NoSuchProcess, RedisError):
            fault()

    def _keep_second_worker(self) -> None:
        if self._second is None or self._second.poll() is not None:
            self._second = self._service.start_worker()

    def _kill_second_worker(self) -> None:
        assert self._second is not None
        with suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self._second.pid)
            kill([worker, *worker.children(recursive=True)])
        self._second.wait()

    def _kill_worker(self) -> None:
        worker = self._service.part("worker")
        children = worker.children(recursive=True)
        kill([worker, *children] if self._rng.random() < 0.5 else [worker])

    def _kill_run(self) -> None:
        """Kill the processes that carry out runs, and none of their parents."""
        workers = [p for p in self._service.processes() if "worker" in words_of(p)]
        kill([child for worker in workers for child in worker.children(recursive=True)])

    def _kill_part(self) -> None:
        kill([self._service.part(self._rng.choice(("api", "dispatcher")))])

    def _freeze(self) -> None:
        """Have a process stand still for a while: longer than a lease at times."""
        candidates = [self._service.part(name) for name in PARTS]
        candidates += [child for part in candidates for child in part.children(recursive=True)]
        process = self._rng.choice(candidates)
        process.suspend()
        try:
            time.sleep(self._rng.uniform(SHORTEST_SLEEP_S, LONGEST_SLEEP_S))
        finally:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _wipe_redis(self) -> None:
        with Redis.from_url(self._service.servers.redis_url) as connection:
            connection.flushall()

    def _kill_redis(self) -> None:
        kill([psutil.Process(self._service.servers.redis.pid())])

    def _kill_postgres(self) -> None:
        postmaster = psutil.Process(self._service.servers.postgres.pid())
        kill([postmaster, *postmaster.children(recursive=True)])

    def _kill_supervisor(self) -> None:
        assert self._service.process is not None
        self._service.process.kill()
        self._service.process.wait()
        self._service.start()

    def _import(self) -> None:
        with suppress(ApiError, httpx.TransportError), self._service.client() as client:
            client.import_records(IMPORTED, self._url)

    def _push_and_train(self) -> None:
        """Have the doomed dataset in use, until it is gone."""
        newcomers = People.invent(NEWCOMERS)
        self._doomed.later.append(newcomers)
        with suppress(ApiError, httpx.TransportError), self._service.client() as client:
            client.push_records(DOOMED, newcomers.parquet())
            client.retrain(DOOMED)

    def _destroy(self) -> None:
        """Have the doomed dataset destroyed, while the next fault comes."""

        def destroy() -> None:
            with suppress(ApiError, httpx.TransportError), self._service.client() as client:
                client.destroy_dataset(DOOMED, backbones=[DOOMED])

        threading.Thread(target=destroy, name="destroyer", daemon=True).start()

    def _flood(self) -> None:
        """Have an address without a key call as often as it can, for two seconds."""
        port = int(self._service.url.rpartition(":")[2])
        asyncio.run(flood(port, [_CALL], _FLOOD_PER_S, _FLOOD_S))

    def _rotate(self) -> None:
        """Change the signing key, as the guide says: with the service stopped."""
        self.end()
        assert self._service.stop() == 0
        subprocess.run(
            [sys.executable, "-m", "app.cli", "signing-key", "rotate"],
            env=self._service.environment(),
            check=True,
            capture_output=True,
        )
        self._service.start()
        self._keep_second_worker()

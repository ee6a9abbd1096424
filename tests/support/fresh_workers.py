"""Real workers for a test: each job in a fork of a process that has only preloaded.

What a job imports while it is sealed is told through the worker's output, which is a pipe.
"""

import json
import subprocess
import sys
from collections import defaultdict

from app.runtime.locations import redis_connection
from app.services import Services
from tests.support.patience import PATIENCE_S
from workers.dispatcher import Dispatcher
from workers.queue import open_queue

_PROGRAM = """
import json, os, sys
from contextlib import contextmanager

from rq.serializers import JSONSerializer

from app.runtime import logs
from app.runtime.locations import redis_connection
from app.runtime.settings import Settings
from workers import worker
from workers.queue import NAME
from workers.seal import ram_only

refused = ram_only.writes_refused

@contextmanager
def noting():
    before = set(sys.modules)
    try:
        with refused():
            yield
    finally:
        told = {"run": logs.present()["run"], "late": sorted(set(sys.modules) - before)}
        os.write(1, (json.dumps(told) + chr(10)).encode())

worker.preload()
ram_only.writes_refused = noting
connection = redis_connection(Settings())
serial = worker.RunWorker([NAME], connection=connection, serializer=JSONSerializer)
serial.work(burst=True, logging_level="WARNING")
"""


class FreshWorkers:
    """Dispatches, and has workers carry out what is queued.

    Attributes:
        late: what was imported while sealed, by run; a run that was not sealed has no entry.
    """

    def __init__(self, services: Services) -> None:
        connection = redis_connection(services.settings)
        connection.flushdb()
        self._queue = open_queue(connection)
        self._dispatcher = Dispatcher(services, self._queue)
        self.late: dict[str, set[str]] = defaultdict(set)

    def work(self) -> None:
        """Work until nothing is left to do."""
        for _ in range(20):
            self._dispatcher.tick()
            if not self._queue.count:
                return
            answer = subprocess.run(
                [sys.executable, "-c", _PROGRAM],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=PATIENCE_S,
            )
            for line in answer.stdout.splitlines():
                told = json.loads(line)
                self.late[told["run"]] |= set(told["late"])
        raise AssertionError("the queue never became empty")

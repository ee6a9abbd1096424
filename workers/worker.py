"""The worker process: executes one run at a time, each in its own child process.

What most runs import is imported before forking, so that a child starts fast. CUDA is never used
here.
"""

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch  # noqa: F401 - imported once, for all children
from redis import RedisError
from redis.client import Pipeline
from rq import Queue, Worker, worker_registration
from rq.exceptions import StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.timeouts import TimerDeathPenalty
from sqlalchemy.orm import configure_mappers

from app.operations.monitoring.queue_state import MONITORING_INTERVAL_S, WORKER_KEPT_S, WORKER_TTL_S
from app.runtime import logs
from app.runtime.locations import redis_connection
from app.runtime.logs import describe
from app.runtime.processes.hardening import harden, may_lock_memory
from app.runtime.processes.starting import uncollected
from app.runtime.processes.stopping import GRACE_S, StopSignal, stop_with_parent
from app.runtime.settings import Settings
from workers import jobs
from workers.data.memory import keep_freed
from workers.mechanisms.catalogue import load_rules
from workers.queue import NAME
from workers.seal.ram_only import import_ahead

_log = logging.getLogger("expunge.worker")
_RECONNECT_DELAY_S = 1.0
_TELL_EVERY_S = 60.0
_stop = StopSignal()


class RunWorker(Worker):
    """RQ's worker, adapted to long runs that must survive outages of Redis.

    SIGTERM and SIGINT ask it to stop: the run goes back to the queue and the worker ends. The child
    that executes a run does the same when this process dies.
    """

    max_connection_wait_time = 2.0

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Record the request to stop, even if RQ fails because Redis is unreachable."""
        _stop.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def register_birth(self) -> None:
        """Sign on, and sign off the workers of this host whose processes are gone."""
        for other in Worker.all(connection=self.connection, serializer=JSONSerializer):
            gone = other.pid == self.pid or (other.pid and not psutil.pid_exists(other.pid))
            if other.hostname == self.hostname and gone:
                other.register_death()  # type: ignore[no-untyped-call]
        super().register_birth()  # type: ignore[no-untyped-call]

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Send a heartbeat and register again, in case Redis was wiped."""
        super().heartbeat(max(timeout or 0, WORKER_KEPT_S), pipeline)
        worker_registration.register(self, pipeline)
        self.set_state(self.get_state(), pipeline)

    def handle_warm_shutdown_request(self) -> None:
        """Let the child return its run to the queue; RQ would wait for the run's end."""
        if self.horse_pid:
            with suppress(ProcessLookupError):
                os.kill(self.horse_pid, signal.SIGTERM)

    def setup_work_horse_signals(self) -> None:
        """Make the child return its run when it is asked to stop or its parent dies.

        One that hangs in compiled code is killed when its lease has long been over. Jobs have no
        timeout, for which RQ would take the same signal.
        """
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGTERM, jobs.stop.set)
        self.death_penalty_class = TimerDeathPenalty
        if self.pid is not None:
            stop_with_parent(self.pid, hangs_after_s=Settings().lease_s + GRACE_S)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Harden the child before it reads anything, and disable its compiler caches."""
        harden()
        sys.dont_write_bytecode = True
        os.environ["CUDA_CACHE_DISABLE"] = "1"
        super().main_work_horse(job, queue)

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Finish a job even if Redis becomes unreachable meanwhile."""
        try:
            super().execute_job(job, queue)
        except RedisError:
            self.wait_for_horse()
            raise

    def handle_exception(self, job: Job, *exc_info: Any) -> None:  # noqa: ANN401
        """Log an exception without its message: jobs raise nothing, so it is RQ's own."""
        _log.warning("job %s: %s", job.id, describe(exc_info[1]))

    def handle_job_failure(self, job: Job, queue: Queue, *_: object, **__: object) -> None:
        """Record a failed job in Redis, without the traceback."""
        super().handle_job_failure(job, queue)

    def teardown(self) -> None:
        """Unregister from Redis if it is reachable."""
        with suppress(RedisError):
            super().teardown()  # type: ignore[no-untyped-call]
        if self.pubsub_thread is not None:
            self.pubsub_thread.stop()


def preload() -> None:
    """Import all update rules: a worker starts once, but forks for each run.

    Not here is what takes a second and few runs need: what accounts for DP-SGD, and what tries it.

    What is loaded by then is left out of garbage collection: each collection in a run would pass
    over all of it, and copy the pages that the child shares with its worker.
    """
    keep_freed()
    with uncollected():
        load_rules()
        import_ahead()
        configure_mappers()


def main() -> None:
    """Work until SIGTERM or SIGINT; wait during outages of Redis."""
    preload()
    connection = redis_connection(Settings())
    if not may_lock_memory():
        _log.warning("memory may be swapped: raise the limit on locked memory, or encrypt swap")
    told_at = -_TELL_EVERY_S
    while not _stop.is_set():
        try:
            worker = RunWorker(
                [NAME],
                connection=connection,
                serializer=JSONSerializer,
                log_job_description=False,
                worker_ttl=WORKER_TTL_S,
                job_monitoring_interval=MONITORING_INTERVAL_S,
            )
            logs.note_process(worker=worker.name)
            worker.work(logging_level="WARNING")
        except StopRequested:
            return
        except RedisError as error:
            if time.monotonic() - told_at >= _TELL_EVERY_S:
                told_at = time.monotonic()
                _log.warning("waiting for Redis (EXPUNGE_REDIS_URL): %s", type(error).__name__)
        _stop.wait(_RECONNECT_DELAY_S)

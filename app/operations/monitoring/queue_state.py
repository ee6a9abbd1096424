"""The state of Redis: queued runs, live workers, live dispatchers.

Workers register and send heartbeats as RQ defines them; one that was killed or hangs counts as
silent, until another one of its host starts or ``WORKER_KEPT_S`` are over. Dispatchers are in a
sorted set, scored by Redis' clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

QUEUE = "expunge-runs"
WORKER_TTL_S = 30
"""Idle workers send a heartbeat 15 s before this ends, busy ones every 10 s."""
MONITORING_INTERVAL_S = 10
WORKER_KEPT_S = 600
DISPATCHER_INTERVAL_S = 5.0
_DISPATCHERS = "expunge:dispatchers"
_DISPATCHER_SILENT_AFTER_S = 30.0
_WORKER_SILENT_AFTER_S = 60.0


@dataclass(frozen=True)
class WorkerState:
    """A live worker, as last reported to Redis.

    Attributes:
        name: its RQ name.
        host, pid: where it runs; None before its first report.
        state: its RQ state: ``idle``, ``busy``, ``started`` or ``suspended``.
        last_heartbeat: in UTC; None while it registers.
        run: its current run, if any.
    """

    name: str
    host: str | None
    pid: int | None
    state: str
    last_heartbeat: datetime | None
    run: str | None

    @property
    def silent_s(self) -> float:
        """Seconds since its last heartbeat, comparing the worker's clock with ours."""
        if self.last_heartbeat is None:
            return 0.0
        return max(0.0, (datetime.now(UTC) - self.last_heartbeat).total_seconds())


@dataclass(frozen=True)
class QueueState:
    """A snapshot of Redis: queued runs, live workers, silent ones, live dispatchers."""

    depth: int
    workers: Sequence[WorkerState]
    silent: int
    dispatchers: int

    @property
    def states(self) -> Counter[str]:
        """Number of workers by state."""
        return Counter(worker.state for worker in self.workers)

    @property
    def oldest_heartbeat_s(self) -> float | None:
        """Age of the oldest last heartbeat of any live worker; None without workers."""
        return max((worker.silent_s for worker in self.workers), default=None)


def queue_state(connection: Redis) -> QueueState:
    """Read the queue and the live processes; ``RedisError`` if Redis does not answer."""
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    known = [_state_of(worker) for worker in Worker.all(queue=queue, serializer=JSONSerializer)]
    alive = [worker for worker in known if worker.silent_s < _WORKER_SILENT_AFTER_S]
    since = _now(connection) - _DISPATCHER_SILENT_AFTER_S
    return QueueState(
        depth=int(queue.count),
        workers=sorted(alive, key=lambda worker: (worker.host or "", worker.pid or 0)),
        silent=len(known) - len(alive),
        dispatchers=int(connection.zcount(_DISPATCHERS, since, "+inf")),
    )


def _state_of(worker: BaseWorker) -> WorkerState:
    job = worker.get_current_job()
    heartbeat = worker.last_heartbeat
    return WorkerState(
        name=worker.name,
        host=worker.hostname,
        pid=worker.pid,
        state=str(worker.get_state()),
        last_heartbeat=None if heartbeat is None else heartbeat.replace(tzinfo=UTC),
        run=None if job is None else job.meta.get("run"),
    )


def note_dispatcher(connection: Redis, name: str) -> None:
    """Record a dispatcher's heartbeat and remove dispatchers that have been silent for long.

    Raises:
        RedisError: Redis does not answer.
    """
    now = _now(connection)
    connection.zadd(_DISPATCHERS, {name: now})
    connection.zremrangebyscore(_DISPATCHERS, "-inf", now - _DISPATCHER_SILENT_AFTER_S)


def _now(connection: Redis) -> float:
    seconds, microseconds = connection.time()
    return float(seconds) + float(microseconds) / 1e6

"""What Redis shows: how many runs wait, and which workers and dispatchers are alive.

Workers sign on and give signs of life as RQ does it; a worker that is killed is gone from here
after ``WORKER_TTL_S`` + 60 seconds at most. Dispatchers have a sorted set of their own, by Redis'
clock.
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
"""An idle worker gives a sign of life every 15 s less than this, a working one every 10 s."""
MONITORING_INTERVAL_S = 10
DISPATCHER_INTERVAL_S = 5.0
_DISPATCHERS = "expunge:dispatchers"
_DISPATCHER_SILENT_AFTER_S = 30.0
_WORKER_SILENT_AFTER_S = 60.0


@dataclass(frozen=True)
class WorkerState:
    """A worker that is alive, as it last told Redis.

    Attributes:
        name: RQ's name of it.
        host, pid: where it runs; None for a worker that has told nothing yet.
        state: RQ's word: ``idle``, ``busy``, ``started`` or ``suspended``.
        last_heartbeat: in UTC; None while it is just signing on.
        run: the run that it carries out, if any.
    """

    name: str
    host: str | None
    pid: int | None
    state: str
    last_heartbeat: datetime | None
    run: str | None

    @property
    def silent_s(self) -> float:
        """Seconds since its last sign of life, by the worker's clock and ours."""
        if self.last_heartbeat is None:
            return 0.0
        return max(0.0, (datetime.now(UTC) - self.last_heartbeat).total_seconds())


@dataclass(frozen=True)
class QueueState:
    """A moment in Redis.

    Attributes:
        depth: runs that wait in the queue.
        workers: those that are alive.
        dispatchers: how many are alive.
    """

    depth: int
    workers: Sequence[WorkerState]
    dispatchers: int

    @property
    def states(self) -> Counter[str]:
        """How many workers are in which state."""
        return Counter(worker.state for worker in self.workers)

    @property
    def oldest_heartbeat_s(self) -> float | None:
        """Since the last sign of life of the most silent worker; None if there is none."""
        return max((worker.silent_s for worker in self.workers), default=None)


def queue_state(connection: Redis) -> QueueState:
    """Look at the queue and at who is alive.

    Raises:
        RedisError: Redis does not answer.
    """
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    known = [_state_of(worker) for worker in Worker.all(queue=queue, serializer=JSONSerializer)]
    alive = [worker for worker in known if worker.silent_s < _WORKER_SILENT_AFTER_S]
    return QueueState(
        depth=int(queue.count),
        workers=sorted(alive, key=lambda worker: (worker.host or "", worker.pid or 0)),
        dispatchers=_live_dispatchers(connection),
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
    """Give a dispatcher's sign of life; those that are silent for long are forgotten.

    Raises:
        RedisError: Redis does not answer.
    """
    now = _now(connection)
    connection.zadd(_DISPATCHERS, {name: now})
    connection.zremrangebyscore(_DISPATCHERS, "-inf", now - _DISPATCHER_SILENT_AFTER_S)


def _live_dispatchers(connection: Redis) -> int:
    since = _now(connection) - _DISPATCHER_SILENT_AFTER_S
    return int(connection.zcount(_DISPATCHERS, since, "+inf"))


def _now(connection: Redis) -> float:
    seconds, microseconds = connection.time()
    return float(seconds) + float(microseconds) / 1e6

"""What Redis shows: how many runs wait, and which workers and dispatchers are alive.

Workers sign on and give signs of life as RQ does it; a worker that is killed is gone from here
after ``WORKER_TTL_S`` + 60 seconds at most. Dispatchers have a sorted set of their own, by Redis'
clock.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer

QUEUE = "expunge-runs"
WORKER_TTL_S = 30
"""An idle worker gives a sign of life every 15 s less than this, a working one every 10 s."""
MONITORING_INTERVAL_S = 10
DISPATCHER_INTERVAL_S = 5.0
_DISPATCHERS = "expunge:dispatchers"
_DISPATCHER_SILENT_AFTER_S = 30.0
_WORKER_SILENT_AFTER_S = 60.0


@dataclass(frozen=True)
class QueueState:
    """A moment in Redis.

    Attributes:
        depth: runs that wait in the queue.
        workers: how many are alive, by RQ's word for what they do.
        oldest_heartbeat_s: since the last sign of life of the most silent one that is alive.
        dispatchers: how many are alive.
    """

    depth: int
    workers: Mapping[str, int]
    oldest_heartbeat_s: float | None
    dispatchers: int


def queue_state(connection: Redis) -> QueueState:
    """Look at the queue and at who is alive.

    Raises:
        RedisError: Redis does not answer.
    """
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    states: Counter[str] = Counter()
    ages: list[float] = []
    for worker in Worker.all(queue=queue, serializer=JSONSerializer):
        age_s = _age_s(worker.last_heartbeat)
        if age_s < _WORKER_SILENT_AFTER_S:
            states[str(worker.get_state())] += 1
            ages.append(age_s)
    return QueueState(
        depth=int(queue.count),
        workers=states,
        oldest_heartbeat_s=max(ages, default=None),
        dispatchers=_live_dispatchers(connection),
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


def _age_s(moment: datetime | None) -> float:
    """Return how long ago a worker's heartbeat was, by the worker's clock and ours."""
    if moment is None:
        return 0.0  # it is just signing on
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (datetime.now(UTC) - aware).total_seconds())

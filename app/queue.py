"""What stands in the queue, read only: the workers' own module fills and empties it.

Redis may be wiped at any time, so nothing here is a promise: the ledger is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

NAME = "expunge-runs"


@dataclass(frozen=True)
class WorkerFacts:
    """One worker as it last told Redis.

    Attributes:
        name: RQ's name of it.
        host, pid: where it runs; None for a worker that has told nothing yet.
        state: RQ's word: ``idle``, ``busy``, ``started`` or ``suspended``.
        last_heartbeat: in UTC.
        run: the run that it carries out, if any.
    """

    name: str
    host: str | None
    pid: int | None
    state: str
    last_heartbeat: datetime | None
    run: str | None


@dataclass(frozen=True)
class QueueFacts:
    """The queue of runs: how many wait, and who takes them."""

    waiting: int
    workers: Sequence[WorkerFacts]


def queue_facts(connection: Redis) -> QueueFacts:
    """Return what Redis knows; ``RedisError`` when it is away."""
    queue = Queue(NAME, connection=connection, serializer=JSONSerializer)
    workers = [_facts(worker) for worker in Worker.all(queue=queue, serializer=JSONSerializer)]
    return QueueFacts(
        waiting=queue.count,
        workers=sorted(workers, key=lambda worker: (worker.host or "", worker.pid or 0)),
    )


def _facts(worker: BaseWorker) -> WorkerFacts:
    job = worker.get_current_job()
    heartbeat = worker.last_heartbeat
    return WorkerFacts(
        name=worker.name,
        host=worker.hostname,
        pid=worker.pid,
        state=str(worker.get_state()),
        last_heartbeat=None if heartbeat is None else heartbeat.replace(tzinfo=UTC),
        run=None if job is None else job.meta.get("run"),
    )

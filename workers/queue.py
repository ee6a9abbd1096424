"""The queue between dispatcher and workers. It carries ids and may be wiped at any time."""

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from app.monitoring.queue_state import QUEUE

NAME = QUEUE
_FAILURE_TTL_S = 60


def open_queue(connection: Redis) -> Queue:
    """Return the queue of runs."""
    return Queue(NAME, connection=connection, serializer=JSONSerializer)


def enqueue_run(queue: Queue, run_id: str) -> None:
    """Hand a run to whichever worker comes first. A second time does no harm: runs are leased."""
    queue.enqueue_call(
        "workers.jobs.execute_run",
        args=(run_id,),
        timeout=-1,
        result_ttl=0,
        failure_ttl=_FAILURE_TTL_S,
        description="run",
        meta={"run": run_id},
    )


def waiting_runs(queue: Queue) -> set[str]:
    """Return the ids of the runs that wait in the queue."""
    return {str(job.meta["run"]) for job in queue.get_jobs() if "run" in job.meta}

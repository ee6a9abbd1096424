"""The queue between dispatcher and workers. It holds ids and may be wiped at any time."""

from contextlib import suppress
from typing import Any

from redis import Redis, RedisError
from rq import Queue, get_current_job
from rq.serializers import JSONSerializer

from app.operations.monitoring.queue_state import QUEUE

NAME = QUEUE
_FAILURE_TTL_S = 60


def open_queue(connection: Redis) -> Queue:
    """Return the queue of runs."""
    return Queue(NAME, connection=connection, serializer=JSONSerializer)


def enqueue_run(queue: Queue, run_id: str) -> None:
    """Signal that a run is waiting; the next free worker takes the most urgent one.

    It is taken before all other work. Safe to repeat: runs are leased.
    """
    more = {"description": "run", "meta": {"run": run_id}, "at_front": True}
    _enqueue(queue, "execute_run", run_id, **more)


def enqueue_members(queue: Queue, run_id: str) -> None:
    """Signal that a member of an ensemble waits for a worker; safe to repeat: it is leased."""
    _enqueue(queue, "train_members", run_id, description="members")


def enqueue_import(queue: Queue, import_id: str, attempt: str) -> None:
    """Signal that an import waits, once for each ``attempt``; safe to repeat: it is leased."""
    job_id = f"import-{import_id}-{attempt}"
    if queue.fetch_job(job_id) is not None:
        return
    _enqueue(queue, "carry_out_import", import_id, description="import", job_id=job_id)


def _enqueue(queue: Queue, job: str, subject_id: str, **more: Any) -> None:  # noqa: ANN401
    """Enqueue one of ``workers.jobs``, which gets an id and leaves no result."""
    queue.enqueue_call(
        f"workers.jobs.{job}",
        args=(subject_id,),
        timeout=-1,
        result_ttl=0,
        failure_ttl=_FAILURE_TTL_S,
        **more,
    )


def note_current(run_id: str) -> None:
    """Record in Redis which run the current job has taken; skipped without Redis."""
    job = get_current_job()
    if job is not None:
        job.meta["run"] = run_id
        with suppress(RedisError):
            job.save_meta()  # type: ignore[no-untyped-call]


def waiting_runs(queue: Queue) -> set[str]:
    """Return the ids of the queued runs."""
    return {str(job.meta["run"]) for job in queue.get_jobs() if "run" in job.meta}

"""States of a service that its operator may meet: busy, and failing."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from unittest.mock import patch

from redis import Redis
from rq import Queue, Worker
from rq.serializers import JSONSerializer
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.domain.plan import Plan
from app.domain.states import Phase
from app.ledger import runs
from app.ledger.runs import with_report
from app.ledger.tables import ForgetRequestRow
from app.operations.monitoring.queue_state import QUEUE
from app.planning.mechanisms.catalogue import epsilon_by_step
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from tests.support.workshop import LEASE_S, Held, Workshop

STEPS = 60
BUDGET_EPOCHS = 15.0
MODELS = ("churn-forecast", "face-match", "review-sentiment")


def advance(workshop: Workshop, held: Held, share: float) -> tuple[int, float]:
    """Report a run that has taken a share of its steps; return (step, epsilon)."""
    curve = epsilon_by_step(Plan.from_json(workshop.run(held.run_id).plan))
    step, epsilon = curve[max(0, round(share * len(curve)) - 1)]
    progress: dict[str, object] = {
        "phase": Phase.UNLEARNING,
        "step": step,
        "total_steps": curve[-1][0],
        "epsilon": epsilon,
    }
    progress["reports"] = with_report(workshop.run(held.run_id).reports or [], progress)
    with workshop.transaction() as session:
        runs.heartbeat(session, held.run_id, held.token, lease_s=LEASE_S, progress=progress)
    return step, epsilon


def forget(workshop: Workshop, record: str, *, days_ago: float = 0) -> str:
    """Submit a request as if it had been some days ago; return its id."""
    with in_the_past(timedelta(days=days_ago)):
        return workshop.forget(record)


@contextmanager
def in_the_past(ago: timedelta) -> Iterator[None]:
    """Have requests come as if it had been so long ago."""
    lock = datasets.lock_dataset_at

    def earlier(session: Session, name: str) -> tuple[DatasetRow, datetime]:
        row, now = lock(session, name)
        return row, now - ago

    with patch.object(datasets, "lock_dataset_at", earlier):
        yield


@contextmanager
def worker(connection: Redis, *, host: str = "worker-1", run: str | None = None) -> Iterator[None]:
    """Have RQ's own record of a worker in Redis, without a process of its own."""
    queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
    worker = Worker([queue], connection=connection, serializer=JSONSerializer)
    worker.hostname = host
    worker.register_birth()
    worker.set_state("idle" if run is None else "busy")
    if run is not None:
        job = queue.enqueue_call("workers.jobs.execute_run", args=(run,), meta={"run": run})
        queue.remove(job)
        worker.set_current_job_id(job.id)
    try:
        yield
    finally:
        worker.register_death()


def released(workshop: Workshop) -> list[str]:
    """Have three models with a version each; return the ids that all of them trained on."""
    shared: set[str] | None = None
    for name in MODELS:
        workshop.train(name, parameters={"steps": STEPS}, budget_epochs=BUDGET_EPOCHS)
        trained = set(workshop.split(name)[0])
        shared = trained if shared is None else shared & trained
    return sorted(shared or (), key=lambda name: int(name.rpartition("-")[2]))


def busy(workshop: Workshop) -> tuple[Held, Held]:
    """Have requests of all ages and two runs on their way; return these."""
    trained = released(workshop)
    forget(workshop, trained[0], days_ago=31.4)
    forget(workshop, trained[1], days_ago=27.2)
    workshop.dispatch()
    for name in MODELS:
        workshop.work(name)
    _complete(workshop)
    forget(workshop, trained[2], days_ago=28.6)
    forget(workshop, trained[3], days_ago=9.1)
    workshop.dispatch()
    first, second = (workshop.lease(name) for name in MODELS[1:])
    for held, share in ((first, 0.62), (second, 0.15)):
        workshop.begin(held)
        advance(workshop, held, share)
    forget(workshop, trained[4], days_ago=0.4)
    return first, second


def failing(workshop: Workshop) -> Held:
    """Have overdue requests and runs that failed for good; return one of these."""
    trained = released(workshop)
    forget(workshop, trained[0], days_ago=33.1)
    forget(workshop, trained[1], days_ago=30.6)
    workshop.dispatch()
    reasons = (
        "out of memory: use a smaller batch_size, or a worker with more memory",
        "the worker died 3 times, the last time in phase unlearning: it may lack memory for "
        "this model",
    )
    failed = []
    for name, reason in zip(MODELS, reasons, strict=False):
        held = workshop.begun(name)
        advance(workshop, held, 0.4)
        workshop.give_up(held, reason)
        failed.append(held)
    workshop.work(MODELS[2])
    forget(workshop, trained[2], days_ago=2.3)
    return failed[0]


def _complete(workshop: Workshop) -> None:
    """Erase what may be erased, as the dispatcher does."""
    workshop.services.clean_up()


def oldest_request(session: Session) -> str:
    """Return the id of the request with the earliest deadline."""
    query = select(ForgetRequestRow.id).order_by(ForgetRequestRow.due_at).limit(1)
    return session.scalars(query).one()

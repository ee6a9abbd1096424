"""What a job does with what can go wrong in a run."""

import json
import logging

import pytest
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.domain import errors
from app.runtime import logs
from app.runtime.locations import redis_connection
from app.runtime.logs import DiscreetFormatter, JsonFormatter, describe
from app.runtime.processes.stopping import StopSignal
from tests.support.workshop import RECIPE, Workshop
from workers import jobs
from workers.leases.attempts import is_permanent
from workers.queue import NAME, enqueue_run, open_queue

SECRET = "record-17 of alice@example.com"


@pytest.fixture
def workshop(workshop):
    workshop.define(first_release="as_trained")
    return workshop


@pytest.fixture
def failing(monkeypatch):
    """Let every run fail with an error."""

    def fail_with(error):
        def execute(services, lease):
            raise error

        monkeypatch.setattr(jobs, "execute", execute)

    return fail_with


def test_a_run_is_carried_out_and_cleaned_up_after(workshop):
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    assert workshop.run(run_id).state == "published"
    train, _ = workshop.split()
    request_id = workshop.forget(train[0])
    workshop.dispatch()
    jobs.execute_run(workshop.active_run())
    assert workshop.request(request_id).state == "completed"


def test_a_run_that_is_over_or_held_is_left_alone(workshop):
    held = workshop.lease()
    jobs.execute_run(held.run_id)
    assert workshop.run(held.run_id).attempt == 1


def test_an_id_from_the_queue_only_says_that_there_is_work(workshop):
    """Redis may hold any id: what is carried out is decided in Postgres."""
    jobs.execute_run("run_unknown")
    assert workshop.run(workshop.active_run()).state == "queued"


def test_a_foreign_exception_is_named_but_not_quoted(workshop, failing, caplog):
    failing(KeyError(SECRET))
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    run = workshop.run(run_id)
    assert (run.state, run.attempt) == ("queued", 1)
    assert "KeyError" in caplog.text
    assert SECRET not in caplog.text


def test_what_may_help_is_tried_again_until_attempts_run_out(workshop, failing, services):
    failing(ValueError(SECRET))
    run_id = workshop.active_run()
    for attempt in range(1, services.settings.max_attempts + 1):
        jobs.execute_run(run_id)
        assert workshop.run(run_id).attempt == attempt
    run = workshop.run(run_id)
    assert run.state == "failed"
    assert run.failure_reason.startswith("internal error: ValueError at test_jobs.py")
    assert SECRET not in run.failure_reason


def test_what_cannot_help_fails_the_run_at_once_with_its_reason(workshop, failing):
    failing(errors.RunFailedError("training diverged: lower learning_rate"))
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    run = workshop.run(run_id)
    assert (run.state, run.attempt) == ("failed", 1)
    assert run.failure_reason == "training diverged: lower learning_rate"


def test_a_lost_lease_leaves_no_trace(workshop, monkeypatch):
    run_id = workshop.active_run()

    def execute(services, lease):
        with workshop.transaction() as session:
            row = jobs.runs.holder(session, run_id, lease.fencing_token)
            jobs.runs.give_up_attempt(
                session, row, reason="silent", permanent=False, max_attempts=3
            )
        raise errors.LeaseLostError("another worker holds it")

    monkeypatch.setattr(jobs, "execute", execute)
    jobs.execute_run(run_id)
    run = workshop.run(run_id)
    assert (run.state, run.attempt, run.failure_reason) == ("queued", 1, None)


def test_a_worker_that_is_told_to_stop_hands_its_run_back(workshop, monkeypatch):
    monkeypatch.setattr(jobs, "stop", StopSignal())
    jobs.stop.set()
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    run = workshop.run(run_id)
    assert (run.state, run.attempt) == ("queued", 0)


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (errors.RunFailedError("x"), True),
        (errors.TargetNotMetError("x"), True),
        (errors.PlanError("x"), True),
        (errors.ParameterError("sigma", "above 0"), True),
        (errors.InvalidInputError("x"), True),
        (errors.ConflictError("x"), True),
        (errors.NotFoundError("blob", "x"), True),
        (errors.GoneError("x"), False),
        (errors.ConfigurationError("x"), False),
        (errors.RunInterruptedError("x"), False),
        (OperationalError("SELECT 1", {}, Exception("x")), False),
        (MemoryError(), False),
        (RuntimeError("CUDA error"), False),
    ],
)
def test_what_is_permanent(error, permanent):
    assert is_permanent(error) is permanent


def test_redis_keeps_no_message_of_a_failure_before_the_lease(workshop, monkeypatch):
    def cannot(*_, **__):
        raise OperationalError(SECRET, {}, Exception(SECRET))

    connection = redis_connection(workshop.services.settings)
    connection.flushdb()
    queue = open_queue(connection)
    enqueue_run(queue, workshop.active_run())
    monkeypatch.setattr(jobs.Lease, "take", cannot)
    SimpleWorker([NAME], connection=connection, serializer=JSONSerializer).work(
        burst=True, logging_level="WARNING"
    )
    assert workshop.run(workshop.active_run()).attempt == 0
    assert queue.failed_job_registry.count == 0
    assert not list(connection.scan_iter("rq:results:*"))


def test_logs_show_exceptions_without_their_words():
    def fail():
        try:
            {}[SECRET]
        except KeyError as first:
            raise ValueError(SECRET) from first

    with pytest.raises(ValueError, match=SECRET) as caught:
        fail()
    record = logging.makeLogRecord({"msg": "failed", "stack_info": SECRET})
    record.exc_info = (caught.type, caught.value, caught.tb)
    line = DiscreetFormatter("%(message)s").format(record)
    assert describe(caught.value).startswith("internal error: ValueError at test_jobs.py:")
    assert line.startswith("failed\ninternal error: ValueError at test_jobs.py:")
    assert SECRET not in line


def test_every_line_of_a_run_names_it(workshop, failing):
    failing(ValueError(SECRET))
    run_id = workshop.active_run()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(JsonFormatter().format(record)))
    logger = logging.getLogger("expunge.worker")
    logger.addHandler(handler)
    try:
        jobs.execute_run(run_id)
    finally:
        logger.removeHandler(handler)
    assert [line["run"] for line in lines] == [run_id]
    assert "run" not in logs.present()


@pytest.fixture
def carried_out(monkeypatch):
    """The runs that are carried out, in their order."""
    taken = []

    def execute(services, lease):
        taken.append(lease.run_id)
        raise errors.RunFailedError("enough")

    monkeypatch.setattr(jobs, "execute", execute)
    return taken


def test_what_was_asked_to_be_forgotten_comes_first_by_its_deadline(services, carried_out):
    workshop = _with_heads(services, "later", "sooner")
    workshop.define("training")
    _owe(workshop, "later", "record-1", hours=2)
    _owe(workshop, "sooner", "record-2", hours=1)
    waiting = _queued(workshop, "training", "later", "sooner")

    for run_id in waiting.values():  # in which order Redis has them makes no difference
        jobs.execute_run(run_id)

    assert carried_out == [waiting["sooner"], waiting["later"], waiting["training"]]


def test_what_failed_before_counts_for_the_run_that_takes_it_on(services, carried_out):
    workshop = _with_heads(services, "failed", "other")
    _owe(workshop, "failed", "record-1", hours=1)
    jobs.execute_run(_queued(workshop, "failed")["failed"])
    _owe(workshop, "failed", "record-2", hours=3)
    _owe(workshop, "other", "record-3", hours=2)
    waiting = _queued(workshop, "other", "failed")

    for run_id in waiting.values():
        jobs.execute_run(run_id)

    assert carried_out[1:] == [waiting["failed"], waiting["other"]]


def _with_heads(services, *names):
    """Return models that have learned from every record."""
    workshop = Workshop(services)
    for name in names:
        workshop.train(name, recipe={**RECIPE.to_json(), "held_out_fraction": 0.0})
    return workshop


def _owe(workshop, name, record, *, hours):
    """Have one model alone owe a request, for so long."""
    values = {"request": workshop.forget(record), "model": name, "hours": hours}
    with workshop.transaction() as session:
        session.execute(text(_OWED_BY_ONE), values)
        session.execute(text(_DUE_IN), values)


def _queued(workshop, *names):
    """Return the models' runs, as the queue has them."""
    workshop.dispatch()
    with workshop.transaction() as session:
        session.execute(text("UPDATE runs SET enqueued_at = now() WHERE state = 'queued'"))
    return {name: workshop.active_run(name) for name in names}


_OWED_BY_ONE = """
    UPDATE obligations SET state = 'cancelled' FROM models
    WHERE models.id = model_id AND request_id = :request AND models.name <> :model
"""
_DUE_IN = (
    "UPDATE forget_requests SET due_at = now() + :hours * interval '1 hour' WHERE id = :request"
)


def test_a_run_that_must_wait_before_its_next_attempt_is_not_taken_for_another(
    services, carried_out
):
    workshop = Workshop(services)
    workshop.define("first")
    workshop.define("second")
    jobs.execute_run(workshop.active_run("second"))

    assert carried_out == [workshop.run(carried_out[0]).id]
    assert workshop.active_run("first") is not None
    assert workshop.active_run("second") is None

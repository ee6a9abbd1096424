"""The dispatcher over real servers, one step at a time."""

import threading
from functools import partial

import pytest
from redis import ConnectionError as RedisConnectionError
from redis import Redis
from rq import Queue
from sqlalchemy import func, select, text

from app.access.idempotency import Call
from app.access.tables import IdempotencyKeyRow
from app.domain.errors import NotReadyError
from app.evidence.log import checkpoints, trees
from app.ledger import outbox, runs, scheduling
from app.operations.monitoring.queue_state import queue_state
from app.registry.tables import ModelRow
from app.runtime.database.wakeups import Signal, wake
from app.runtime.locations import redis_connection
from app.runtime.processes.stopping import StopSignal
from tests.support.patience import PATIENCE_S, until
from tests.support.workshop import Workshop
from workers import dispatcher as dispatcher_module
from workers.dispatcher import Dispatcher
from workers.queue import NAME, enqueue_run, open_queue, waiting_runs

_FREE_MODELS = select(ModelRow.id).with_for_update(skip_locked=True)


@pytest.fixture
def queue(services):
    connection = redis_connection(services.settings)
    connection.flushdb()
    return open_queue(connection)


@pytest.fixture
def dispatcher(services, queue):
    return Dispatcher(services, queue)


@pytest.fixture
def workshop(workshop):
    workshop.define(first_release="as_trained")
    return workshop


@pytest.fixture
def trained(workshop, dispatcher, queue):
    """A model with a version, and nothing left to do."""
    dispatcher.tick()
    workshop.work()
    queue.connection.flushdb()
    return workshop


def age(workshop, seconds):
    """Let the time since anything was enqueued or leased be longer."""
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE runs SET enqueued_at = enqueued_at - make_interval(secs => :s),"
                " lease_expires_at = lease_expires_at - make_interval(secs => :s)"
            ),
            {"s": seconds},
        )


def test_answers_of_calls_that_may_not_come_again_are_forgotten(workshop, services, dispatcher):
    call = Call("key_1", "POST", "/v1/plans", b"", b"{}", "k")
    with workshop.transaction() as session:
        services.idempotency_keys.claim(session, call)
    count = select(func.count()).select_from(IdempotencyKeyRow)
    dispatcher.tick()
    with workshop.transaction() as session:
        assert session.scalar(count) == 1
        session.execute(text("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'"))

    dispatcher.tick()

    with workshop.transaction() as session:
        assert session.scalar(count) == 0


def test_a_new_run_is_enqueued_once(workshop, dispatcher, queue):
    dispatcher.tick()
    dispatcher.tick()
    assert [job.args for job in queue.get_jobs()] == [[workshop.active_run()]]
    assert workshop.waiting(outbox.Topic.ENQUEUE_RUN) == []


def test_redis_holds_ids_alone_and_no_result(workshop, dispatcher, queue):
    dispatcher.tick()
    (job,) = queue.get_jobs()
    assert (job.func_name, job.args) == ("workers.jobs.execute_run", [workshop.active_run()])
    assert (job.kwargs, job.description, job.result_ttl) == ({}, "run", 0)
    assert 0 < job.failure_ttl <= 60


def test_what_redis_has_forgotten_is_enqueued_again(workshop, dispatcher, queue):
    dispatcher.tick()
    queue.connection.flushall()
    dispatcher.tick()
    assert waiting_runs(queue) == set()
    age(workshop, 10)
    dispatcher.tick()
    assert waiting_runs(queue) == {workshop.active_run()}


def test_a_job_that_still_waits_is_not_enqueued_twice(workshop, dispatcher, queue):
    dispatcher.tick()
    age(workshop, 10)
    dispatcher.tick()
    assert queue.count == 1


def test_while_redis_is_away_nothing_is_lost_and_the_rest_goes_on(trained, services, tmp_path):
    away = Queue(NAME, connection=Redis(unix_socket_path=str(tmp_path / "nowhere"), retry=None))
    dispatcher = Dispatcher(services, away)
    (train, _) = trained.split()
    request_id = trained.forget(train[0])
    failed = []
    for step in (*dispatcher.steps, *dispatcher.upkeep):
        try:
            step()
        except RedisConnectionError:
            failed.append(step.__name__)
    dispatcher.close()
    assert failed == ["_enqueue_runs", "_give_sign_of_life"]
    assert len(trained.waiting(outbox.Topic.ENQUEUE_RUN)) == 1
    assert trained.request(request_id).state == "accepted"
    assert trained.active_run() is not None
    trained.work()
    services.clean_up()
    assert trained.request(request_id).state == "completed"


def test_a_plan_that_takes_long_holds_up_no_other_model(trained, dispatcher, queue, monkeypatch):
    trained.define("other", first_release="as_trained")
    dispatcher.tick()
    trained.work("other")
    queue.connection.flushdb()
    go_on, plan, slow = threading.Event(), scheduling.schedule_model, trained.model().id

    def planned(database, model_id):
        assert model_id != slow or go_on.wait(PATIENCE_S)
        return plan(database, model_id)

    monkeypatch.setattr(scheduling, "schedule_model", planned)
    both = set(trained.split("model")[0]) & set(trained.split("other")[0])
    trained.forget(min(both))

    def is_other_enqueued():
        for step in dispatcher.steps:
            step()
        return waiting_runs(queue) == {trained.active_run("other")}

    try:
        until(is_other_enqueued)
        assert trained.active_run() is None
    finally:
        go_on.set()
    dispatcher.tick()
    assert waiting_runs(queue) == {trained.active_run(name) for name in ("model", "other")}
    dispatcher.close()


def test_the_window_holds_a_run_back_and_gathers_requests(services, dispatcher):
    workshop = Workshop(services)
    workshop.define(first_release="as_trained", window_s=3600.0)
    dispatcher.tick()
    workshop.work()
    train, _ = workshop.split()
    first = workshop.forget(train[0])
    dispatcher.tick()
    assert workshop.active_run() is None
    second = workshop.forget(train[1])
    with workshop.transaction() as session:  # an hour passes
        session.execute(text("UPDATE outbox SET available_at = clock_timestamp()"))
    dispatcher.tick()
    run_id = workshop.active_run()
    workshop.work()
    for request_id in (first, second):
        (obligation,) = workshop.obligations(request_id)
        assert (obligation.state, obligation.run_id) == ("certified", run_id)


def test_the_run_of_a_silent_worker_goes_to_another(workshop, services, dispatcher, queue):
    dispatcher.tick()
    held = workshop.lease()
    queue.connection.flushdb()
    dispatcher.tick()
    assert workshop.run(held.run_id).state == "leased"
    age(workshop, 3600)
    impatient = Dispatcher(short_leases(services), queue)
    impatient.tick()
    impatient.tick()
    run = workshop.run(held.run_id)
    assert (run.state, run.attempt) == ("queued", 1)
    assert waiting_runs(queue) == {held.run_id}
    with pytest.raises(Exception, match="held by another"), workshop.transaction() as session:
        runs.holder(session, held.run_id, held.token)


def test_a_worker_that_dies_each_time_fails_the_run_with_a_reason(workshop, services, queue):
    impatient = Dispatcher(short_leases(services), queue)
    for _ in range(services.settings.max_attempts):
        held = workshop.lease()
        age(workshop, 3600)
        impatient._requeue_silent_runs()
    run = workshop.run(held.run_id)
    assert run.state == "failed"
    assert "worker died 3 times" in run.failure_reason
    assert "memory" in run.failure_reason


def test_of_several_silent_workers_one_run_is_given_up_at_a_time(
    workshop, services, queue, monkeypatch
):
    """Else a model would stay locked while the next is waited for, and a new request locks both."""
    workshop.define("another")
    for name in ("model", "another"):
        workshop.lease(name)
    age(workshop, 3600)
    free, give_up_attempt = [], runs.give_up_attempt

    def noting(*args, **more):
        with workshop.transaction() as session:
            free.append(len(session.scalars(_FREE_MODELS).all()))
        give_up_attempt(*args, **more)

    monkeypatch.setattr(runs, "give_up_attempt", noting)
    Dispatcher(short_leases(services, max_attempts=1), queue)._requeue_silent_runs()

    assert {run.state for run in workshop.runs()} == {"failed"}
    assert free == [2, 2]


def test_a_second_copy_of_a_job_does_no_harm(workshop, dispatcher, queue, work):
    run_id = workshop.active_run()
    enqueue_run(queue, run_id)
    enqueue_run(queue, run_id)
    work()
    assert workshop.run(run_id).attempt == 1


@pytest.fixture
def woken(dispatcher, services, monkeypatch):
    """The dispatcher as it goes on by itself, after its first round for nothing but signals."""
    monkeypatch.setattr(dispatcher_module, "_UPKEEP_INTERVAL_S", 10 * PATIENCE_S)
    stop, begun = StopSignal(), threading.Event()
    dispatcher.upkeep = (*dispatcher.upkeep, begun.set)
    going = partial(dispatcher.dispatch, stop, pause_s=10 * PATIENCE_S)
    thread = threading.Thread(target=going)
    thread.start()
    assert begun.wait(PATIENCE_S)
    yield thread
    stop.set()
    with services.database.transaction() as session:
        wake(session, Signal.DUE)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_request_wakes_the_dispatcher_and_its_run_the_queue(trained, queue, woken):
    (train, _) = trained.split()
    request_id = trained.forget(train[0])
    until(lambda: trained.active_run() and waiting_runs(queue) == {trained.active_run()})
    trained.work()
    trained.services.complete_at_once(lambda _: [request_id])
    assert trained.request(request_id).state == "completed"


def test_what_is_answered_at_once_is_erased_at_once(trained, woken):
    _, held_out = trained.split()
    request_id = trained.forget(held_out[0])
    until(lambda: trained.request(request_id).state == "completed")


def test_a_request_that_waited_for_the_end_of_a_run_is_completed_at_once(trained, services, woken):
    train, held_out = trained.split()
    first = trained.forget(train[0])
    until(trained.active_run)
    held = trained.lease()
    trained.begin(held)
    result = trained.result(held)
    second = trained.forget(held_out[0])
    assert trained.request(second).state == "certified"
    trained.publish(held, result)
    services.complete_at_once(lambda _: [first])
    until(lambda: trained.request(second).state == "completed")


def test_one_failing_step_does_not_hold_up_the_others(monkeypatch, services, queue, workshop):
    class Stop:
        left = 3

        def listen(self):
            return self

        def wait(self, timeout_s):
            self.left -= 1
            return self.left < 0

    class Faulty(Dispatcher):
        def _schedule_models(self):
            raise ValueError("record-17 is at fault")

    monkeypatch.setattr(dispatcher_module, "StopSignal", Stop)
    monkeypatch.setattr(dispatcher_module, "Dispatcher", Faulty)
    dispatcher_module.main()
    assert waiting_runs(queue) == {workshop.active_run()}


def short_leases(services, **more):
    """Return the services with leases so short that Postgres has run for longer than one."""
    settings = services.settings.model_copy(update={"lease_s": 0.001, **more})
    return type(services)(**{**vars(services), "settings": settings})


def test_the_log_is_signed_by_and_by(workshop, services, dispatcher):
    with services.database.transaction() as session:
        with pytest.raises(NotReadyError):
            checkpoints.latest(session)
        entries = trees.size(session)
    dispatcher.tick()
    with services.database.transaction() as session:
        assert checkpoints.latest(session).size == entries + 1  # the key that signs is told


def test_a_job_that_redis_lost_is_enqueued_again_after_the_clock_was_set_back(
    workshop, dispatcher, queue
):
    dispatcher.tick()
    queue.connection.flushall()
    age(workshop, -3600)
    dispatcher.tick()
    assert waiting_runs(queue) == {workshop.active_run()}


def test_a_dispatcher_shows_that_it_lives(dispatcher, queue):
    assert queue_state(queue.connection).dispatchers == 0
    dispatcher.tick()
    assert queue_state(queue.connection).dispatchers == 1


def test_a_dispatcher_warns_of_what_is_overdue(trained, dispatcher):
    (train, _) = trained.split()
    request_id = trained.forget(train[0])
    with trained.transaction() as session:
        session.execute(text("UPDATE forget_requests SET due_at = now() - interval '1 day'"))
    Dispatcher(trained.services, dispatcher._queue).tick()
    assert trained.request(request_id).overdue_noted_at is not None

"""Runs: one worker at a time, and no request that waits in silence."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, text, update
from sqlalchemy.exc import IntegrityError

from app.domain.errors import ConflictError, InvalidInputError, LeaseLostError
from app.domain.states import RunKind, RunState
from app.ledger import repository, runs
from app.ledger.deadlines import note_deadlines
from app.ledger.models import policies
from app.ledger.outbox import Topic
from app.ledger.tables import RunRow
from app.registry import repository as registry
from app.registry.forecasts import Occasion
from tests.support.patience import PATIENCE_S
from tests.support.workshop import LEASE_S, RECIPE, RECORDS, Held, Workshop


def _expire(workshop: Workshop, run_id: str) -> None:
    with workshop.transaction() as session:
        session.execute(
            update(RunRow)
            .where(RunRow.id == run_id)
            .values(lease_expires_at=func.clock_timestamp() - timedelta(seconds=1))
        )


def _requeue_silent(workshop: Workshop, *, attempts: int = 3) -> list[str]:
    with workshop.transaction() as session:
        row = repository.expired_run(session, lease_s=0.001)
        if row is None:
            return []
        runs.give_up_attempt(
            session, row, reason="the worker died", permanent=False, max_attempts=attempts
        )
        return [row.id]


def _heartbeat(workshop: Workshop, held: Held, **progress: object) -> None:
    with workshop.transaction() as session:
        runs.heartbeat(session, held.run_id, held.token, lease_s=LEASE_S, progress=progress)


def test_a_lease_is_exclusive(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()

    with workshop.transaction() as session:
        assert runs.lease(session, held.run_id, lease_s=LEASE_S) is None


def test_an_expired_lease_goes_to_another_worker_and_the_old_one_is_fenced_off(
    workshop: Workshop,
) -> None:
    workshop.define()
    old = workshop.begun()
    result = workshop.result(old)
    assert _requeue_silent(workshop) == []
    _expire(workshop, old.run_id)

    assert _requeue_silent(workshop) == [old.run_id]

    for attempt in (workshop.begin, workshop.publish, lambda held: _heartbeat(workshop, held)):
        with pytest.raises(LeaseLostError):
            attempt(old)
    new = workshop.lease()
    assert new.run_id == old.run_id
    assert new.token > old.token
    with pytest.raises(LeaseLostError):
        workshop.publish(old, result)
    workshop.begin(new)
    assert workshop.publish(new).number == 1


@pytest.mark.parametrize(
    ("due_in", "first"),
    [({"long": 20 * 24, "short": 20 * 24}, "short"), ({"long": 1, "short": 2}, "long")],
)
def test_short_runs_come_before_long_ones_unless_the_deadline_is_near(
    workshop: Workshop, due_in: dict[str, int], first: str
) -> None:
    """By the hour of their deadlines, as long as these are far away."""
    workshop.forged = True
    for name in due_in:
        workshop.train(name)
    learned = {name: set(workshop.split(name)[0]) for name in due_in}
    only = {"long": learned["long"] - learned["short"], "short": learned["short"] - learned["long"]}
    requests = {name: workshop.forget(min(records)) for name, records in only.items()}
    workshop.dispatch()
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE runs SET started_at = finished_at - make_interval(secs => CASE model_id"
                " WHEN :long THEN 600 ELSE 6 END) WHERE finished_at IS NOT NULL"
            ),
            {"long": workshop.model("long").id},
        )
        session.execute(text("UPDATE runs SET enqueued_at = now() WHERE state = 'queued'"))
        for name, hours in due_in.items():
            session.execute(
                text(
                    "UPDATE forget_requests SET due_at = date_trunc('hour', now())"
                    " + make_interval(hours => :hours, mins => 30) WHERE id = :id"
                ),
                {"hours": hours, "id": requests[name]},
            )
    second = next(name for name in due_in if name != first)
    runs_of = {name: workshop.active_run(name) for name in due_in}
    assert [workshop.lease(second).run_id, workshop.lease(second).run_id] == [
        runs_of[first],
        runs_of[second],
    ]


def test_a_heartbeat_prolongs_the_lease_and_notes_progress(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    before = workshop.run(held.run_id).lease_expires_at

    _heartbeat(workshop, held, step=3, total_steps=10, epsilon=2.5)

    run = workshop.run(held.run_id)
    assert run.lease_expires_at > before
    assert (run.step, run.total_steps, run.epsilon) == (3, 10, 2.5)


def test_a_run_whose_attempts_are_used_up_fails_with_its_reason(workshop: Workshop) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    for attempt in range(1, 4):
        held = workshop.begun()
        assert workshop.run(held.run_id).attempt == attempt
        assert workshop.request(request_id).state == "unlearning"
        _expire(workshop, held.run_id)
        _requeue_silent(workshop)

    run = workshop.run(held.run_id)
    assert (run.state, run.failure_reason) == ("failed", "the worker died")
    request = workshop.request(request_id)
    assert (request.state, request.failure_reason) == ("failed", "the worker died")


def test_a_run_that_fails_before_it_begins_is_not_made_again_and_again(workshop: Workshop) -> None:
    workshop.train()
    requests = [workshop.forget(record) for record in workshop.split()[0][:2]]
    workshop.dispatch()
    held = workshop.lease()
    workshop.give_up(held, "the factory is not allowed")

    workshop.dispatch()

    assert workshop.active_run() is None
    for request_id in requests:
        request = workshop.request(request_id)
        assert (request.state, request.failure_reason) == ("failed", "the factory is not allowed")
    runs.retry_run(workshop.services.database, held.run_id)
    workshop.work()
    assert all(workshop.request(each).state == "certified" for each in requests)


def test_a_failed_request_succeeds_when_it_is_retried(workshop: Workshop) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)

    with workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, request_id)
    version = workshop.unlearn()

    assert version.number == 2
    request = workshop.request(request_id)
    assert (request.state, request.failure_reason) == ("certified", None)


def test_retrying_the_failed_run_serves_its_requests_too(workshop: Workshop) -> None:
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)

    runs.retry_run(workshop.services.database, held.run_id)
    workshop.work()

    assert workshop.request(request_id).state == "certified"


def test_the_newest_run_can_be_retried_though_the_clock_was_set_back(workshop: Workshop) -> None:
    run_id = workshop.train().run_id
    with workshop.transaction() as session:
        session.get_one(RunRow, run_id).created_at += timedelta(hours=5)
    workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    runs.retry_run(workshop.services.database, held.run_id)
    workshop.work()


def test_a_later_requests_run_answers_what_failed_before(workshop: Workshop) -> None:
    """Its certificate accounts for those records, and nobody may come to try again."""
    workshop.train()
    learned = workshop.split()[0]
    failed = workshop.forget(learned[0])
    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held)
    assert workshop.request(failed).state == "failed"

    later = workshop.forget(learned[1])
    workshop.dispatch()
    held = workshop.begun()
    assert workshop.request(failed).state == "unlearning"
    assert [owed.failure_reason for owed in workshop.obligations(failed)] == [None]
    workshop.publish(held)

    (one,), (other,) = workshop.obligations(failed), workshop.obligations(later)
    assert one.certificate_id == other.certificate_id is not None
    assert (one.state, one.failure_reason) == ("certified", None)
    workshop.services.clean_up()
    assert {workshop.request(each).state for each in (failed, later)} == {"completed"}


def test_a_request_that_came_during_a_run_that_fails_gets_a_run_of_its_own(
    workshop: Workshop,
) -> None:
    workshop.train()
    trained, _ = workshop.split()
    failing = workshop.forget(trained[0])
    workshop.dispatch()
    held = workshop.begun()
    waiting = workshop.forget(trained[1])
    workshop.dispatch()
    assert workshop.waiting(Topic.SCHEDULE_MODEL) == []

    workshop.give_up(held)
    workshop.dispatch()

    assert workshop.active_run() is not None
    workshop.work()
    assert workshop.request(waiting).state == "certified"
    assert workshop.request(failing).state == "certified"


def test_a_request_for_weights_that_could_not_be_certified_hears_why(workshop: Workshop) -> None:
    workshop.define(upload=True)
    workshop.upload("model")
    held = workshop.begun()
    during = workshop.forget("record-1")
    workshop.dispatch()
    workshop.give_up(held, "no such layer")
    after = workshop.forget("record-2")

    workshop.dispatch()
    held = workshop.begun()
    workshop.give_up(held, "no such layer")
    workshop.dispatch()

    for request_id in (during, after):
        request = workshop.request(request_id)
        assert (request.state, request.failure_reason) == ("failed", "no such layer")
    assert workshop.active_run() is None


def test_open_obligations_share_one_run(workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    requests = [workshop.forget(record) for record in trained[:3]]

    workshop.dispatch()
    version = workshop.unlearn()

    assert len(workshop.runs()) == 2
    certificates = {o.certificate_id for r in requests for o in workshop.obligations(r)}
    assert certificates == {version.certificate_id}


def test_a_request_during_a_run_waits_for_the_next(workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    first = workshop.forget(trained[0])
    workshop.dispatch()
    held = workshop.begun()
    late = workshop.forget(trained[1])
    workshop.dispatch()

    workshop.publish(held)

    assert workshop.request(first).state == "certified"
    assert workshop.request(late).state == "accepted"
    workshop.unlearn()
    assert workshop.request(late).state == "certified"


def test_a_request_before_a_queued_run_begins_joins_it(workshop: Workshop) -> None:
    workshop.train()
    trained, _ = workshop.split()
    workshop.forget(trained[0])
    workshop.dispatch()
    held = workshop.lease()
    joined = workshop.forget(trained[1])

    selection = workshop.begin(held)
    workshop.publish(held)

    assert workshop.request(joined).state == "certified"
    assert not selection.retain & workshop.seqs(*trained[:2])


def test_a_window_delays_the_run(workshop: Workshop) -> None:
    workshop.train(window_s=600.0)
    workshop.forget(workshop.split()[0][0])

    workshop.dispatch()

    assert workshop.active_run() is None
    assert len(workshop.waiting(Topic.SCHEDULE_MODEL)) == 1


def test_a_record_forgotten_while_shards_are_read_is_left_out(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    # The worker has read every shard by now; the choice comes after.
    workshop.forget("record-5")

    selection = workshop.begin(held)

    assert not (selection.retain | selection.held_out) & workshop.seqs("record-5")
    assert len(selection.retain | selection.held_out) == RECORDS - 1


def test_a_record_forgotten_while_training_goes_on_is_owed(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    selection = workshop.begin(held)
    trained, _ = workshop.split()
    assert workshop.seqs(*trained) == selection.retain
    request_id = workshop.forget(trained[0])
    workshop.dispatch()

    workshop.publish(held)
    workshop.unlearn()

    assert workshop.request(request_id).state == "certified"


def test_training_that_failed_owes_nobody_anything(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()
    request_id = workshop.forget(workshop.split()[0][0])
    assert workshop.request(request_id).state == "accepted"

    workshop.give_up(held)
    workshop.services.clean_up()

    assert workshop.request(request_id).state == "completed"
    assert [o.state for o in workshop.obligations(request_id)] == ["cancelled"]
    assert workshop.model().trained_through is None


def test_training_that_begins_again_owes_nothing_for_what_it_leaves_out(
    workshop: Workshop,
) -> None:
    workshop.define()
    held = workshop.begun()
    trained, _ = workshop.split()
    request_id = workshop.forget(trained[0])
    workshop.give_up(held, permanent=False)

    selection = workshop.begin(workshop.lease())

    assert not selection.retain & workshop.seqs(trained[0])
    assert workshop.request(request_id).state == "certified"


def test_a_model_has_one_active_run(workshop: Workshop) -> None:
    workshop.define()

    with workshop.transaction() as session:
        model = registry.model_named(session, "model")
        forecast = Occasion.of(session, model).forecast()
        with pytest.raises(IntegrityError, match="uq_runs_one_active"):
            runs.create_run(session, model, RunKind.UNLEARN, forecast)
        session.rollback()


def test_an_old_failure_cannot_be_retried_once_a_version_exists(workshop: Workshop) -> None:
    """A second training would reset which records the served version has seen."""
    workshop.define()
    failed = workshop.begun()
    workshop.give_up(failed)
    runs.retry_run(workshop.services.database, failed.run_id)
    workshop.work()

    with pytest.raises(ConflictError):
        runs.retry_run(workshop.services.database, failed.run_id)


def test_a_run_that_did_not_fail_cannot_be_retried(workshop: Workshop) -> None:
    workshop.define()
    run_id = workshop.active_run()

    with pytest.raises(ConflictError):
        runs.retry_run(workshop.services.database, run_id)


def test_a_policy_that_no_plan_meets_any_more_fails_the_request_with_the_reason(
    workshop: Workshop,
) -> None:
    """Fewer records mean fewer steps per epoch; the dispatcher must survive that."""
    recipe = {**RECIPE.to_json(), "held_out_fraction": 0.0}
    workshop.train(recipe=recipe, parameters={"steps": 8}, budget_epochs=1.0)

    request_id = workshop.forget(*workshop.split()[0][:20])
    workshop.dispatch()

    request = workshop.request(request_id)
    assert request.state == "failed"
    assert "raise budget_epochs or lower steps" in request.failure_reason
    workshop.push(RECORDS, first=1000)  # which this lineage never learns from
    with workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, request_id)
    workshop.dispatch()
    assert workshop.request(request_id).state == "failed"
    policies.change_policy(workshop.services.database, "model", {"budget_epochs": 2.0})
    with workshop.transaction() as session:
        workshop.services.forget_requests.retry(session, request_id)
    workshop.unlearn()
    assert workshop.request(request_id).state == "certified"


def test_a_request_that_is_cancelled_when_a_run_begins_is_answered_by_it(
    workshop: Workshop,
) -> None:
    workshop.train()
    trained, _ = workshop.split()
    workshop.forget(trained[0])
    cancelled = workshop.forget(trained[1])
    workshop.dispatch()
    held = workshop.lease()
    with ThreadPoolExecutor(1) as pool:
        with workshop.transaction() as session:
            workshop.services.forget_requests.cancel(session, cancelled)
            session.flush()
            beginning = pool.submit(workshop.begin, held)
            with pytest.raises(TimeoutError):
                beginning.result(timeout=0.5)
        selection = beginning.result(timeout=PATIENCE_S)
    workshop.publish(held)

    assert not selection.retain & workshop.seqs(trained[1])
    assert workshop.request(cancelled).state == "cancelled"
    assert [owed.state for owed in workshop.obligations(cancelled)] == ["certified"]


class TestFirstRelease:
    def test_certify_publishes_a_certified_version(self, workshop: Workshop) -> None:
        workshop.define()
        assert workshop.work().state == "certified"

    def test_none_keeps_the_first_version_private(self, workshop: Workshop) -> None:
        workshop.define(first_release="none")
        assert workshop.work().state == "private"
        request_id = workshop.forget(workshop.split()[0][0])
        workshop.dispatch()
        assert workshop.work().state == "certified"
        assert workshop.request(request_id).state == "certified"

    def test_as_trained_is_refused_for_uploaded_weights(self, workshop: Workshop) -> None:
        with pytest.raises(InvalidInputError):
            workshop.define(upload=True, first_release="as_trained")


class TestUploadedWeights:
    def test_they_are_shredded_after_the_first_release(self, workshop: Workshop) -> None:
        workshop.define(upload=True)
        blob = workshop.upload("model", b"noise-free")
        assert workshop.services.blobs.read(blob) == b"noise-free"
        assert workshop.run(workshop.active_run()).kind == RunKind.CERTIFY

        workshop.work()
        workshop.services.clean_up()

        assert workshop.model().imported_blob_id is None
        with pytest.raises(Exception, match="shredded"):
            workshop.services.blobs.read(blob)

    def test_a_run_in_progress_or_a_version_refuses_new_ones(self, workshop: Workshop) -> None:
        workshop.define(upload=True)
        workshop.upload("model")
        with pytest.raises(ConflictError, match="being certified"):
            workshop.upload("model")
        workshop.work()
        with pytest.raises(ConflictError, match="already"):
            workshop.upload("model")

    def test_a_model_that_trains_here_takes_none(self, workshop: Workshop) -> None:
        workshop.define()
        with pytest.raises(ConflictError, match="is trained here and takes no weights"):
            workshop.upload("model")

    def test_new_ones_replace_those_that_failed(self, workshop: Workshop) -> None:
        workshop.define(upload=True)
        first = workshop.upload("model")
        held = workshop.begun()
        workshop.give_up(held)

        workshop.upload("model", b"better")
        workshop.services.clean_up()

        with pytest.raises(Exception, match="shredded"):
            workshop.services.blobs.read(first)
        assert workshop.work().number == 1


def test_a_lease_starts_with_a_clean_report(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.lease()
    _heartbeat(workshop, held, step=9, epsilon=1.0)
    workshop.give_up(held, permanent=False)
    assert workshop.run(held.run_id).state == RunState.QUEUED

    run = workshop.run(workshop.lease().run_id)

    assert (run.step, run.epsilon, run.attempt) == (None, None, 2)


def _cancel(workshop: Workshop, run_id: str) -> RunRow:
    with workshop.transaction() as session:
        return runs.cancel_run(session, run_id)


def _owing(workshop: Workshop) -> tuple[str, Held]:
    """Return a request, and the run that has begun to answer it."""
    workshop.train()
    request_id = workshop.forget(workshop.split()[0][0])
    workshop.dispatch()
    held = workshop.begun()
    return request_id, held


def test_cancelling_a_run_takes_it_from_its_worker_and_lets_the_request_wait(
    workshop: Workshop,
) -> None:
    request_id, held = _owing(workshop)
    assert workshop.request(request_id).state == "unlearning"

    assert _cancel(workshop, held.run_id).state == "cancelled"

    with pytest.raises(LeaseLostError):
        workshop.beat(held)
    with pytest.raises(LeaseLostError):
        workshop.publish(held)
    assert workshop.request(request_id).state == "accepted"
    workshop.dispatch()
    assert workshop.active_run() is None

    runs.retry_run(workshop.services.database, held.run_id)
    workshop.work()
    assert workshop.request(request_id).state == "certified"


def test_a_queued_run_is_cancelled_at_once(workshop: Workshop) -> None:
    workshop.define()
    run_id = workshop.active_run()
    assert run_id is not None

    _cancel(workshop, run_id)

    with workshop.transaction() as session:
        assert runs.lease(session, run_id, lease_s=30.0) is None
    with pytest.raises(ConflictError, match="cancelled"):
        _cancel(workshop, run_id)


def test_a_cancelled_training_leaves_its_model_to_be_trained_later(workshop: Workshop) -> None:
    workshop.define()
    held = workshop.begun()

    _cancel(workshop, held.run_id)

    assert workshop.model().trained_through is None
    request_id = workshop.forget("record-1")  # no weights exist that could have learned from it
    assert workshop.request(request_id).state == "certified"
    runs.retry_run(workshop.services.database, held.run_id)
    assert workshop.work().state == "certified"


@pytest.mark.parametrize("cause", ["policy", "request", "deadline"])
def test_what_a_cancelled_run_owed_is_planned_again(workshop: Workshop, cause: str) -> None:
    request_id, held = _owing(workshop)
    _cancel(workshop, held.run_id)

    if cause == "policy":
        policies.change_policy(workshop.services.database, "model", {"epsilon": 2.0})
    elif cause == "request":
        workshop.forget(workshop.split()[0][1])
    else:
        with workshop.transaction() as session:
            request = repository.request(session, request_id)
            request.due_at = request.received_at
        workshop.forged = True
        with workshop.transaction() as session:
            assert note_deadlines(session, warning_s=1e6)
    workshop.unlearn()
    assert workshop.request(request_id).state == "certified"

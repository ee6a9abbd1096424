"""Members of an ensemble trained by several workers, of which one fails: each member once."""

import psutil
import pytest
from redis import Redis
from sqlalchemy import select

from app.domain.states import BlobState
from app.ledger.member_trainings import KIND
from app.ledger.tables import MemberTrainingRow
from app.storage.tables import BlobRow
from tests.support.digits import DATASET, TASK
from tests.support.facts import await_completed
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.support.service import is_alive, kill
from tests.support.slow import FACTORY
from tests.system.faults.matrix.cases import learned_by_member
from workers.queue import enqueue_members, open_queue

NAME, MEMBERS = "ensemble", 4
# A member takes three seconds, so that another worker is there before the last one is begun, on a
# busy machine too.
DEFINITION = {
    "name": NAME,
    "dataset": NAME,
    "task": TASK,
    "architecture": {
        "name": "ensemble",
        "members": MEMBERS,
        "of": {"name": "custom", "factory": FACTORY, "options": {"seconds_per_step": 0.15}},
    },
    "recipe": {"epochs": 20, "batch_size": 1000, "learning_rate": 0.1, "held_out_fraction": 0.2},
    "policy": {"mechanism": "sharded_retraining", "forget": "retrain"},
}
# A helper that comes too late meets no fault; then others are forgotten.
TRIES = 10


@pytest.fixture(scope="module")
def crowd():
    """People of this dataset alone: those of other cases may be forgotten by now."""
    return People.invent(1797)


@pytest.fixture(scope="module")
def left(service, crowd, datasets_and_model):
    """The subjects that each member has learned from and that nobody has asked to forget."""
    with service.client() as client:
        client.define_dataset(**DATASET | {"name": NAME})
        client.push_records(NAME, crowd.parquet())
        client.define_model(DEFINITION)
        client.wait_for_model(NAME, timeout_s=PATIENCE_S)
    return learned_by_member(service, NAME, members=MEMBERS)


@pytest.fixture
def forget_of(client, crowd, left):
    """Have one person forgotten of each of so many members, in one request; return its id."""

    def forget_of(members=MEMBERS):
        chosen = [crowd.subject(left[member].pop()) for member in range(members)]
        return client.forget(NAME, subject_ids=chosen)["id"]

    return forget_of


@pytest.fixture
def met_by_a_helper(client, points, forget_of):
    """Forget until a fault meets a worker that helps with the run; return what that run was."""

    def met_by_a_helper(point, *faults, then=lambda: None):
        for _ in range(TRIES):
            points.arm(point, *faults)
            request = forget_of()
            until(lambda: _has_met(points, point) or _has_ended(client, request))  # noqa: B023
            if _has_met(points, point):
                then()
                return await_completed(client, request)
            points.disarm()
        raise AssertionError("no other worker helped")

    return met_by_a_helper


@pytest.fixture(autouse=True)
def nothing_handed_over_is_left(service, client, left, facts):
    """What must hold after each case: one publication, and nothing of the attempts is left."""
    before = client.certified(NAME)["number"]
    asked = len(client.requests(model=NAME))
    yield
    for process in service.standing_still():
        process.resume()
    until(lambda: _handed_over(service) <= {BlobState.SHREDDED})
    asked = len(client.requests(model=NAME)) - asked
    assert client.certified(NAME)["number"] == before + asked
    with service.database() as database, database.transaction() as session:
        assert session.scalars(select(MemberTrainingRow)).all() == []


def _handed_over(service):
    """Return the states of all that was ever handed over."""
    with service.database() as database, database.transaction() as session:
        return set(session.scalars(select(BlobRow.state).where(BlobRow.kind == KIND)))


def _has_met(points, point):
    return not any(fault.startswith(f"{point}.") for fault in points.waiting())


def _has_ended(client, request):
    return client.request(request)["state"] in ("completed", "failed")


@pytest.mark.parametrize("point", ["mid_member", "member_trained", "member_written"])
def test_a_helper_is_killed_and_the_run_goes_on(point, service, met_by_a_helper):
    assert met_by_a_helper(point, "SIGKILL")["attempt"] == 1
    if point == "member_written":
        assert _handed_over(service)


@pytest.mark.parametrize(
    ("point", "members", "attempts"),
    [
        ("mid_training", 2, 2),  # of two members it is met by whoever trains the first
        ("at_target", MEMBERS, 2),
        ("before_publish", MEMBERS, 2),
        ("after_publish", MEMBERS, 1),
    ],
)
def test_the_runs_own_worker_is_killed(point, members, attempts, client, points, forget_of):
    points.arm(point, "SIGKILL")
    assert await_completed(client, forget_of(members))["attempt"] == attempts


@pytest.mark.parametrize("point", ["mid_member", "member_trained", "member_written"])
def test_a_helper_sleeps_until_the_run_is_over(point, service, points, met_by_a_helper):
    """Its member is trained by the run's own worker; what it hands over late is refused."""
    assert met_by_a_helper(point, "SIGSTOP", then=service.frozen)["attempt"] == 1
    (sleeper,) = service.standing_still()
    sleeper.resume()
    until(lambda: not is_alive(sleeper))


@pytest.mark.parametrize("point", ["mid_member", "member_written"])
def test_a_helper_sleeps_and_the_runs_own_worker_is_killed(point, service, points, met_by_a_helper):
    """Neither what it handed over nor what it hands over late is the next attempt's."""

    def arm():
        service.frozen()
        points.arm("at_target", "SIGKILL")

    assert met_by_a_helper(point, "SIGSTOP", then=arm)["attempt"] == 2
    (sleeper,) = service.standing_still()
    sleeper.resume()
    until(lambda: not is_alive(sleeper))


def test_a_helper_is_told_to_stop(service, met_by_a_helper):
    seen = service.log.stat().st_size

    def stop():
        (helper,) = service.frozen()
        helper.terminate()
        helper.resume()

    assert met_by_a_helper("mid_member", "SIGSTOP", then=stop)["attempt"] == 1
    assert "the worker was asked to stop" in service.log.read_text()[seen:]


def test_redis_is_wiped_while_members_are_trained(service, met_by_a_helper):
    def wipe():
        (helper,) = service.frozen()
        with Redis.from_url(service.servers.redis_url) as connection:
            connection.flushall()
        helper.resume()

    assert met_by_a_helper("mid_member", "SIGSTOP", then=wipe)["attempt"] == 1


def test_postgres_is_restarted_while_a_member_is_handed_over(service, met_by_a_helper):
    def restart():
        (helper,) = service.frozen()
        postmaster = psutil.Process(service.servers.postgres.pid())
        kill([postmaster, *postmaster.children(recursive=True)])
        helper.resume()

    assert met_by_a_helper("member_written", "SIGSTOP", then=restart)["attempt"] == 1


def test_help_is_asked_for_more_than_once(service, client, forget_of):
    with service.second_worker(), Redis.from_url(service.servers.redis_url) as connection:
        queue = open_queue(connection)
        request = forget_of()
        run = until(lambda: client.request(request)["obligations"][0]["run"])
        until(lambda: client.run(run)["state"] == "running")
        for _ in range(2 * MEMBERS):
            enqueue_members(queue, run)
        assert await_completed(client, request)["attempt"] == 1
        enqueue_members(queue, run)
        until(lambda: queue.count == 0)


def test_the_clock_is_set_back_and_a_helper_dies(service, jump, met_by_a_helper):
    def die():
        (helper,) = service.frozen()
        jump("UPDATE member_trainings SET lease_expires_at = lease_expires_at + :by")
        kill([helper])

    assert met_by_a_helper("mid_member", "SIGSTOP", then=die)["attempt"] == 1

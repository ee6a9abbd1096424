"""Members left out, by a worker or in the answer, and refilled: killed anywhere, each once."""

import httpx
import psutil
import pytest

from app.client import ApiError
from tests.support.digits import DATASET, TASK
from tests.support.facts import await_completed
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.support.service import is_alive, kill
from tests.support.slow import FACTORY
from tests.system.faults.matrix.cases import learned_by_member

BY_RUN, IN_ANSWER, WITH_HELP, MEMBERS = "left-out-by-run", "left-out-in-answer", "helped", 6
WINDOW_S = {BY_RUN: 1.0, IN_ANSWER: 0.0, WITH_HELP: 0.0}
# With help a member takes three seconds, so that a helper is there before the last one is begun.
STEP_S = {BY_RUN: 0.05, IN_ANSWER: 0.05, WITH_HELP: 0.3}
RECIPE = {"epochs": 10, "batch_size": 1000, "learning_rate": 0.1, "held_out_fraction": 0.2}
TRIES = 10
# By hand alone, when a case asks for it.
POLICY = {"minimum_members": 2, "refill_after_s": None, "refill_at": None}


@pytest.fixture(scope="module")
def crowd():
    """People of these datasets alone: those of other cases may be forgotten by now."""
    return People.invent(1797)


class Left(dict):
    """Of each model, the subjects of each member that nobody has asked to forget.

    A model is defined when it is first asked for.
    """

    def __init__(self, service, crowd):
        self._service, self._crowd = service, crowd

    def __missing__(self, name):
        options = {"seconds_per_step": STEP_S[name]}
        of = {"name": "custom", "factory": FACTORY, "options": options}
        with self._service.client() as client:
            client.define_dataset(**DATASET | {"name": name})
            client.push_records(name, self._crowd.parquet())
            client.define_model(
                {
                    "name": name,
                    "dataset": name,
                    "task": TASK,
                    "architecture": {"name": "ensemble", "members": MEMBERS, "of": of},
                    "recipe": RECIPE,
                    "policy": POLICY | {"window_s": WINDOW_S[name]},
                }
            )
            client.wait_for_model(name, timeout_s=PATIENCE_S)
        self[name] = learned_by_member(self._service, name, members=MEMBERS)
        return self[name]


@pytest.fixture(scope="module")
def left(service, crowd, datasets_and_model):
    return Left(service, crowd)


def active(client, name):
    members = client.certified(name)["members"]
    return [place for place, each in enumerate(members) if each.get("sha256")]


def refilled(client, name):
    """Train what is out; return the run, once it has ended."""
    run = client.refill(name)["latest_run"]["id"]
    return until(lambda: (now := client.run(run))["state"] in ("published", "failed") and now)


@pytest.fixture
def asked(client, crowd, left):
    """Return what a request has to name, for one person of a member that is active."""

    def asked(name):
        learned = left[name]
        if len(active(client, name)) <= POLICY["minimum_members"]:
            refilled(client, name)
        member = max(active(client, name), key=lambda member: len(learned[member]))
        return member, {"subject_ids": [crowd.subject(learned[member].pop())]}

    return asked


@pytest.fixture
def one_out(client, asked, left):
    """Leave one member out, and no other."""

    def one_out(name):
        if left[name] and len(active(client, name)) < MEMBERS:
            refilled(client, name)
        await_completed(client, client.forget(name, **asked(name)[1])["id"])

    return one_out


def assert_one_release_without(client, name, member, *, before):
    now = client.certified(name)
    assert now["number"] == before["number"] + 1
    expected = [dict(each) for each in before["members"]]
    expected[member] = {"sha256": None, "trained_in": None, "out_since": now["number"]}
    assert now["members"] == expected


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        *((point, 2) for point in ("after_lease", "before_blob_read", "at_target")),
        *((point, 2) for point in ("before_blob_write", "after_blob_write")),
        *((point, 2) for point in ("before_publish", "before_commit")),
        *((point, 1) for point in ("after_publish", "before_shred", "after_shred")),
    ],
)
def test_killed_while_a_run_leaves_members_out(point, attempts, client, points, asked):
    member, ids = asked(BY_RUN)
    before = client.certified(BY_RUN)
    points.arm(point, "SIGKILL")
    request = client.forget(BY_RUN, **ids)["id"]
    assert await_completed(client, request)["attempt"] == attempts
    assert points.waiting() == []
    assert_one_release_without(client, BY_RUN, member, before=before)


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        *((point, 2) for point in ("before_blob_read", "at_target")),
        *((point, 2) for point in ("before_blob_write", "after_blob_write")),
        *((point, 2) for point in ("before_publish", "before_commit")),
        *((point, 1) for point in ("after_publish", "answer")),
    ],
)
def test_killed_while_an_answer_leaves_members_out(point, attempts, client, points, asked):
    """The API is: what it held goes to a worker, and who asks again gets the same request."""
    member, ids = asked(IN_ANSWER)
    before = client.certified(IN_ANSWER)
    ids["external_id"] = f"{point} {before['number']}"
    points.arm(point, "SIGKILL")
    request = until(lambda: _asked(client, ids))["id"]
    assert await_completed(client, request)["attempt"] == attempts
    assert points.waiting() == []
    assert_one_release_without(client, IN_ANSWER, member, before=before)


def _asked(client, ids):
    """Ask, again and again under one name, until there is an answer."""
    try:
        return client.forget(IN_ANSWER, **ids)
    except (httpx.TransportError, ApiError):
        return None


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        *((point, 2) for point in ("after_lease", "after_load", "mid_training", "at_target")),
        *((point, 2) for point in ("before_blob_write", "before_publish", "before_commit")),
        ("after_publish", 1),
    ],
)
def test_killed_in_a_refill(point, attempts, client, points, one_out):
    one_out(IN_ANSWER)
    before = client.certified(IN_ANSWER)
    points.arm(point, "SIGKILL")
    run = refilled(client, IN_ANSWER)
    assert (run["state"], run["kind"], run["attempt"]) == ("published", "refill", attempts)
    assert points.waiting() == []
    now = client.certified(IN_ANSWER)
    assert now["number"] == before["number"] + 1
    for old, new in zip(before["members"], now["members"], strict=True):
        assert new == old if old["sha256"] else new["trained_in"] == now["number"]


def test_a_refill_sleeps_and_is_killed_while_a_request_is_met_beside_it(
    service, client, points, asked, one_out
):
    one_out(IN_ANSWER)
    points.arm("mid_training", "SIGSTOP")
    run = client.refill(IN_ANSWER)["latest_run"]["id"]
    (sleeper,) = service.frozen()
    member, ids = asked(IN_ANSWER)
    before = client.certified(IN_ANSWER)
    await_completed(client, client.forget(IN_ANSWER, **ids)["id"])
    assert_one_release_without(client, IN_ANSWER, member, before=before)
    kill([sleeper])
    until(lambda: client.run(run)["state"] == "published")
    assert active(client, IN_ANSWER) == list(range(MEMBERS))


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        *((point, 2) for point in ("at_target", "before_publish", "before_commit")),
        ("after_publish", 1),
    ],
)
def test_the_dispatcher_is_killed_while_it_leaves_members_out(
    point, attempts, service, client, points, asked, one_out
):
    """It does so while a worker is busy with a refill, which trains what was out by then."""
    one_out(BY_RUN)
    points.arm("mid_training", "SIGSTOP")
    run = client.refill(BY_RUN)["latest_run"]["id"]
    (sleeper,) = service.frozen()
    dispatcher = service.part("dispatcher")
    member, ids = asked(BY_RUN)
    before = client.certified(BY_RUN)
    points.arm(point, "SIGKILL")
    request = client.forget(BY_RUN, **ids)["id"]
    until(lambda: not is_alive(dispatcher))
    sleeper.resume()
    assert await_completed(client, request)["attempt"] == attempts
    assert points.waiting() == []
    until(lambda: client.run(run)["state"] == "published")
    now = client.certified(BY_RUN)
    assert now["number"] == before["number"] + 2
    assert {*range(MEMBERS)} - {*active(client, BY_RUN)} <= {member}


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        *((point, 2) for point in ("after_lease", "after_load", "mid_training", "at_target")),
        *((point, 2) for point in ("before_blob_write", "before_publish", "before_commit")),
        ("after_publish", 1),
    ],
)
def test_killed_while_a_run_below_the_floor_trains_a_member(point, attempts, client, points, asked):
    member, ids = asked(IN_ANSWER)
    before = client.certified(IN_ANSWER)
    client.change_policy(IN_ANSWER, {"minimum_members": len(active(client, IN_ANSWER))})
    points.arm(point, "SIGKILL")
    try:
        run = await_completed(client, client.forget(IN_ANSWER, **ids)["id"])
    finally:
        client.change_policy(IN_ANSWER, {"minimum_members": POLICY["minimum_members"]})
    assert run["attempt"] == attempts
    assert points.waiting() == []
    now = client.certified(IN_ANSWER)
    assert now["number"] == before["number"] + 1
    made = [each for each in now["members"] if each["trained_in"] == now["number"]]
    assert len(made) == 1
    for place, (old, new) in enumerate(zip(before["members"], now["members"], strict=True)):
        assert new == old or new in made or place == member


@pytest.mark.parametrize("point", ["mid_member", "member_trained", "member_written"])
def test_a_helper_is_killed_in_a_refill(point, client, points, asked, left):
    """One that comes too late meets no fault; then it is tried again."""
    for _ in range(TRIES):
        while left[WITH_HELP] and len(active(client, WITH_HELP)) > POLICY["minimum_members"]:
            await_completed(client, client.forget(WITH_HELP, **asked(WITH_HELP)[1])["id"])
        before = client.certified(WITH_HELP)["number"]
        points.arm(point, "SIGKILL")
        run = refilled(client, WITH_HELP)
        assert (run["state"], run["attempt"]) == ("published", 1)
        assert client.certified(WITH_HELP)["number"] == before + 1
        assert active(client, WITH_HELP) == list(range(MEMBERS))
        if points.waiting() == []:
            return
        points.disarm()
    raise AssertionError("no other worker helped")


@pytest.mark.parametrize("point", ["mid_training", "before_commit"])
def test_postgres_is_killed_in_a_refill(point, service, client, points, one_out):
    one_out(IN_ANSWER)
    before = client.certified(IN_ANSWER)["number"]
    points.arm(point, "SIGSTOP")
    run = client.refill(IN_ANSWER)["latest_run"]["id"]
    (worker,) = service.frozen()
    postmaster = psutil.Process(service.servers.postgres.pid())
    kill([postmaster, *postmaster.children(recursive=True)])
    worker.resume()
    until(lambda: client.run(run)["state"] == "published")
    assert client.certified(IN_ANSWER)["number"] == before + 1
    assert active(client, IN_ANSWER) == list(range(MEMBERS))

"""Every fault at every labelled point of a run; each request is completed once all the same.

One service for all cases, with two workers, on a small disk of its own where the machine allows
one. Each case makes it forget another person with a run that takes a second.
"""

import itertools
import re

import psutil
import pytest
from redis import Redis
from sqlalchemy import text

from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.facts import (
    assert_head_verifies,
    assert_ledger_in_order,
    assert_log_without_fault,
    assert_only_the_head_is_served,
    await_completed,
    await_ended,
    only_what_is_current_is_stored,
)
from tests.support.service import Service, kill, until
from tests.support.slow import FACTORY
from tests.support.small_disk import full, small_disk
from workers.queue import enqueue_run, open_queue

MODEL = "matrix"
# Ten noisy steps, one an epoch, and ten of fine-tuning.
DEFINITION = {
    **model(MODEL, parameters={"steps": 10}, budget_epochs=20, first_release="as_trained"),
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {**RECIPE, "batch_size": 1000},
}
DISK_MB = 400
# The points before the publishing transaction's end, in the order of a run.
BEFORE_THE_COMMIT = (
    "after_lease",
    "before_blob_read",
    "after_load",
    "mid_noise",
    "at_target",
    "mid_fine_tune",
    "before_blob_write",
    "after_blob_write",
    "before_publish",
    "before_commit",
)
AFTER_THE_COMMIT = ("after_publish", "before_shred", "after_shred")
subjects = (f"subject-{number}" for number in itertools.count())


def slow(*values):
    """A case for ``make test-slow`` alone."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("matrix") / "data"
    with small_disk(data_dir, size_mb=DISK_MB) as on_small_disk:
        service = Service(data_dir)
        service.on_small_disk = on_small_disk
        try:
            service.start()
            with service.client() as client, service.second_worker():
                client.define_dataset("digits", features=DATASET["features"], classes=10)
                client.push_records("digits", digits_parquet(900))
                client.define_model(DEFINITION)
                client.wait_for_model(MODEL, timeout_s=60)
                yield service
        finally:
            service.discard()


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client


@pytest.fixture
def points(service):
    yield service.points
    service.points.disarm()


@pytest.fixture(scope="module")
def checkpoints():
    """The log's checkpoints after each case."""
    return [b""]


@pytest.fixture(scope="module")
def failed_runs():
    """The runs that a case has made fail for good."""
    return []


@pytest.fixture(autouse=True)
def facts(service, client, points, checkpoints, failed_runs, tmp_path):
    """What must hold after each case, whatever it did."""
    before = client.certified(MODEL)["number"]
    yield
    for process in service.standing_still():
        process.resume()
    until(lambda: points.waiting() == [])
    until(lambda: client.model(MODEL)["latest_run"]["state"] == "published")
    assert assert_only_the_head_is_served(client, MODEL) == before + 1
    until(lambda: an_hour_later(service) and only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session, failed_runs=failed_runs)
    assert_head_verifies(client, MODEL, tmp_path)
    checkpoints.append(assert_log_without_fault(service, client, kept=checkpoints[-1]))


def an_hour_later(service):
    """Let blobs that nobody has adopted be as old as those that are given up."""
    jump(service, "UPDATE blobs SET created_at = now() - :by WHERE state = 'pending'", by="61 min")
    return True


def jump(service, *statements, by="1 hour"):
    """Set the database's clock forward, as seen from the moments that it has written down."""
    with service.database() as database, database.transaction() as session:
        for statement in statements:
            session.execute(text(statement.replace(":by", f"interval '{by}'")))


def forget(client):
    return client.forget("digits", subject_ids=[next(subjects)])["id"]


def attempts_of_one_request(client):
    return await_completed(client, forget(client))["attempt"]


def lost_its_lease(service, client):
    run = client.model(MODEL)["latest_run"]["id"]
    return f"run {run}: the lease was lost" in service.log.read_text()


@pytest.mark.parametrize("point", BEFORE_THE_COMMIT)
def test_killed_before_the_commit_and_carried_out_again(point, client, points):
    points.arm(point, "SIGKILL")
    assert attempts_of_one_request(client) == 2


@pytest.mark.parametrize("point", AFTER_THE_COMMIT)
def test_killed_after_the_commit_and_never_carried_out_again(point, client, points):
    points.arm(point, "SIGKILL")
    assert attempts_of_one_request(client) == 1


@pytest.mark.parametrize("point", ["before_blob_write", "after_blob_write"])
def test_killed_while_records_are_erased(point, client, points):
    points.arm(point, "pass", "SIGKILL")
    assert attempts_of_one_request(client) == 1


@pytest.mark.slow
def test_killed_in_one_attempt_after_the_other(client, points):
    points.arm("mid_noise", "SIGKILL")
    points.arm("before_commit", "SIGKILL")
    assert attempts_of_one_request(client) == 3


@pytest.mark.parametrize(
    "point", [slow("after_lease"), "mid_noise", slow("before_commit"), slow("after_publish")]
)
def test_redis_wiped(point, service, client, points):
    points.arm(point, "SIGSTOP")
    request = forget(client)
    (worker,) = service.frozen()
    with Redis.from_url(service.servers.redis_url) as connection:
        connection.flushall()
    worker.resume()
    await_completed(client, request)


@pytest.mark.parametrize(
    "point", [slow("after_lease"), slow("mid_noise"), "before_commit", slow("before_shred")]
)
def test_postgres_restarted(point, service, client, points):
    points.arm(point, "SIGSTOP")
    request = forget(client)
    (worker,) = service.frozen()
    postmaster = psutil.Process(service.servers.postgres_pid())
    kill([postmaster, *postmaster.children(recursive=True)])
    worker.resume()
    await_completed(client, request)


@pytest.mark.parametrize("point", [slow("after_load"), slow("at_target"), "before_publish"])
def test_a_worker_that_slept_through_its_lease_publishes_nothing(point, service, client, points):
    points.arm(point, "SIGSTOP", "SIGSTOP")
    request = forget(client)
    (sleeper,) = service.frozen()
    (successor,) = {*service.frozen(2)} - {sleeper}
    sleeper.resume()
    until(lambda: lost_its_lease(service, client))
    successor.resume()
    assert await_completed(client, request)["attempt"] >= 2


@pytest.mark.slow
def test_a_worker_wakes_up_after_another_has_published(service, client, points):
    points.arm("before_publish", "SIGSTOP")
    request = forget(client)
    (sleeper,) = service.frozen()
    assert await_completed(client, request)["attempt"] == 2
    sleeper.resume()
    until(lambda: lost_its_lease(service, client))


def test_two_workers_are_handed_the_same_run(service, client, points):
    points.arm("mid_noise", "SIGSTOP")
    request = forget(client)
    (first,) = service.frozen()
    run = client.model(MODEL)["latest_run"]["id"]
    with Redis.from_url(service.servers.redis_url) as connection:
        queue = open_queue(connection)
        for _ in range(3):
            enqueue_run(queue, run)
        until(lambda: queue.count == 0)
        first.resume()
        await_completed(client, request)


def test_the_clock_jumps_forward_over_a_lease(service, client, points):
    points.arm("after_blob_write", "SIGSTOP")
    request = forget(client)
    (worker,) = service.frozen()
    jump(
        service,
        "UPDATE runs SET lease_expires_at = lease_expires_at - :by, enqueued_at = enqueued_at - :by"
        " WHERE state IN ('leased', 'running')",
        "UPDATE blobs SET created_at = created_at - :by WHERE state = 'pending'",
        "UPDATE outbox SET posted_at = posted_at - :by, available_at = available_at - :by",
        by="2 hours",
    )
    until(lambda: client.model(MODEL)["latest_run"]["state"] == "queued")
    worker.resume()
    assert await_completed(client, request)["attempt"] == 2


def test_the_clock_is_set_back_and_the_worker_dies(service, client, points):
    points.arm("mid_noise", "SIGSTOP")
    request = forget(client)
    (worker,) = service.frozen()
    jump(service, "UPDATE runs SET lease_expires_at = lease_expires_at + :by")
    kill([worker])
    assert await_completed(client, request)["attempt"] == 2


def test_the_clock_is_set_back_while_a_request_waits(service, client):
    dispatcher = service.part("dispatcher")
    dispatcher.suspend()
    request = forget(client)
    jump(
        service,
        "UPDATE outbox SET posted_at = posted_at + :by, available_at = available_at + :by",
    )
    dispatcher.resume()
    assert await_completed(client, request)["attempt"] == 1


@pytest.mark.parametrize(
    "point", ["before_blob_read", "before_blob_write", slow("after_blob_write")]
)
def test_a_run_outlasts_an_object_store_that_times_out(point, client, points):
    points.arm(point, *["ETIMEDOUT"] * 4)
    assert attempts_of_one_request(client) == 1


def test_a_fault_in_every_attempt_fails_the_run_until_it_is_tried_again(
    client, points, failed_runs
):
    points.arm("before_publish", *["ETIMEDOUT"] * 3)
    request = forget(client)
    failed = await_ended(client, request)
    assert failed["state"] == "failed"
    (obligation,) = failed["obligations"]
    assert "TimeoutError" in obligation["failure_reason"]
    failed_runs.append(obligation["run"])
    client.retry(request)
    assert await_completed(client, request)["attempt"] == 1


def test_the_object_store_times_out_while_records_are_erased(client, points):
    points.arm("before_blob_write", "pass", "ETIMEDOUT", "ETIMEDOUT")
    assert attempts_of_one_request(client) == 1


def test_the_object_store_times_out_while_it_shreds(client, points):
    points.arm("before_shred", *["ETIMEDOUT"] * 3)
    assert attempts_of_one_request(client) == 1


@pytest.mark.parametrize(
    ("point", "faults"),
    [
        slow("mid_noise", ["SIGSTOP"]),
        ("before_blob_write", ["SIGSTOP"]),
        ("before_blob_write", ["pass", "SIGSTOP"]),
    ],
    ids=["at the next write", "at the write of the weights", "while records are erased"],
)
def test_the_disk_is_full(point, faults, service, client, points):
    if not service.on_small_disk:
        pytest.skip("this machine does not let the test mount a small disk")
    points.arm(point, *faults)
    request = forget(client)
    (process,) = service.frozen()
    seen = service.log.stat().st_size
    with full(service.data_dir):
        process.resume()
        until(lambda: re.search("OSError|No space left", service.log.read_text()[seen:]))
    await_completed(client, request)


def test_logs_hold_no_ids_after_all_this(service, client):
    attempts_of_one_request(client)
    text = service.log.read_text()
    assert "subject-" not in text
    assert "record-" not in text
    assert "[SQL" not in text

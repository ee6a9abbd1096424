"""Two workers with the same run, and clocks that are wrong: one of them publishes, once."""

import pytest
from redis import Redis

from tests.support.facts import await_completed
from tests.support.patience import until
from tests.support.service import is_alive, kill
from tests.system.faults.matrix.cases import MODEL
from workers.queue import enqueue_run, open_queue


@pytest.mark.parametrize("point", ["after_load", "at_target", "before_publish"])
def test_a_worker_that_slept_through_its_lease_publishes_nothing(
    point, service, client, points, forget
):
    points.arm(point, "SIGSTOP", "SIGSTOP")
    request = forget()
    (sleeper,) = service.frozen()
    (successor,) = {*service.frozen(2)} - {sleeper}
    sleeper.resume()
    until(lambda: not is_alive(sleeper))
    successor.resume()
    assert await_completed(client, request)["attempt"] >= 2


def test_a_worker_wakes_up_after_another_has_published(service, client, points, forget):
    points.arm("before_publish", "SIGSTOP")
    request = forget()
    (sleeper,) = service.frozen()
    assert await_completed(client, request)["attempt"] == 2
    sleeper.resume()
    until(lambda: not is_alive(sleeper))


def test_two_workers_are_handed_the_same_run(service, client, points, forget):
    points.arm("mid_noise", "SIGSTOP")
    request = forget()
    (first,) = service.frozen()
    run = client.model(MODEL)["latest_run"]["id"]
    with Redis.from_url(service.servers.redis_url) as connection:
        queue = open_queue(connection)
        for _ in range(3):
            enqueue_run(queue, run)
        until(lambda: queue.count == 0)
        first.resume()
        await_completed(client, request)


def test_the_clock_jumps_forward_over_a_lease(service, client, points, forget, jump):
    points.arm("after_blob_write", "SIGSTOP")
    request = forget()
    (worker,) = service.frozen()
    jump(
        "UPDATE runs SET lease_expires_at = lease_expires_at - :by, enqueued_at = enqueued_at - :by"
        " WHERE state IN ('leased', 'running')",
        "UPDATE blobs SET created_at = created_at - :by WHERE state = 'pending'",
        "UPDATE outbox SET posted_at = posted_at - :by, available_at = available_at - :by",
        by="2 hours",
    )
    until(lambda: client.model(MODEL)["latest_run"]["state"] == "queued")
    worker.resume()
    assert await_completed(client, request)["attempt"] == 2


def test_the_clock_is_set_back_and_the_worker_dies(service, client, points, forget, jump):
    points.arm("mid_noise", "SIGSTOP")
    request = forget()
    (worker,) = service.frozen()
    jump("UPDATE runs SET lease_expires_at = lease_expires_at + :by")
    kill([worker])
    assert await_completed(client, request)["attempt"] == 2


def test_the_clock_is_set_back_while_a_request_waits(service, client, forget, jump):
    dispatcher = service.part("dispatcher")
    dispatcher.suspend()
    request = forget()
    jump("UPDATE outbox SET posted_at = posted_at + :by, available_at = available_at + :by")
    dispatcher.resume()
    assert await_completed(client, request)["attempt"] == 1


def test_nothing_is_left_anywhere_after_all_this(service, client, forget, traces):
    await_completed(client, forget())
    traces.assert_none_at_all()
    text = service.log.read_text()
    assert "subject-" not in text
    assert "record-" not in text
    assert "[SQL" not in text

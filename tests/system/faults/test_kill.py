"""Every part of a running service killed in the middle of a run; nobody's request suffers.

One service for all tests: each makes it forget another person, with a run that takes seconds.
"""

import itertools
import time

import httpx
import psutil
import pytest
from redis import Redis
from sqlalchemy import text

from app.runtime.settings import Settings
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.facts import (
    assert_ledger_in_order,
    assert_only_the_head_is_served,
    await_completed,
    only_what_is_current_is_stored,
)
from tests.support.patience import PATIENCE_S, until
from tests.support.service import LEASE_S, is_alive, kill, running
from tests.support.slow import FACTORY

MODEL = "digits-mlp"
# A second or more of noisy steps, one an epoch, and next to no fine-tuning.
SLOW = {
    **model(MODEL, parameters={"steps": 180}, budget_epochs=184, first_release="as_trained"),
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {**RECIPE, "batch_size": 1000},
}
subjects = (f"subject-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("faults") / "data") as service:
        with service.client() as client:
            client.define_dataset(**DATASET)
            client.push_records("digits", digits_parquet())
            client.define_dataset(**DATASET | {"name": "others"})
            client.push_records("others", digits_parquet())
            client.define_model(SLOW)
            client.wait_for_model(MODEL, timeout_s=PATIENCE_S)
        yield service
        assert_logs_hold_no_tracebacks_and_no_ids(service)


@pytest.fixture
def forgetting(client):
    """A forget request whose run is in the middle of its noisy steps."""
    request = client.forget("digits", subject_ids=[next(subjects)])
    until(lambda: (client.model(MODEL)["latest_run"]["step"] or 0) > 20)
    return request["id"]


@pytest.fixture(autouse=True)
def facts(service, client):
    """What must hold after each test, whatever it did."""
    before = client.certified(MODEL)["number"]
    yield
    until(lambda: client.model(MODEL)["latest_run"]["state"] == "published")
    assert assert_only_the_head_is_served(client, MODEL) > before
    until(lambda: only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session)


@pytest.fixture
def frozen(service, client):
    """A forget request whose run stands still in the middle of its noisy steps."""
    service.points.arm("mid_noise", "SIGSTOP")
    request = client.forget("digits", subject_ids=[next(subjects)])
    service.frozen()
    return request["id"]


def test_the_worker_and_its_child_killed(service, client, frozen):
    worker = service.part("worker")
    kill([worker, *worker.children(recursive=True)])
    assert await_completed(client, frozen)["attempt"] == 2


@pytest.mark.nightly
def test_the_worker_killed_and_its_child_orphaned(service, client, forgetting):
    worker = service.part("worker")
    (child,) = worker.children()
    kill([worker])
    until(lambda: not is_alive(child))
    # It gave its run back; had it just ended, the next attempt would be the second.
    assert await_completed(client, forgetting)["attempt"] == 1


@pytest.mark.nightly
def test_the_api_killed(service, client, forgetting):
    kill([service.part("api")])
    assert await_completed(client, forgetting)["attempt"] == 1


def test_the_api_killed_after_a_call_took_effect_and_before_its_answer(service, client):
    before = {request["id"] for request in client.requests()}
    api = service.part("api")
    call = {"dataset": "digits", "subject_ids": [next(subjects)]}
    service.points.arm("answer", "SIGKILL")
    with pytest.raises(httpx.TransportError):
        forget(service, call)
    until(lambda: not is_alive(api))
    (taken,) = {request["id"] for request in until(client.requests)} - before

    assert forget(service, call).status_code == 409
    with service.database() as database, database.transaction() as session:
        session.execute(text("UPDATE idempotency_keys SET claimed_until = clock_timestamp()"))
    again = forget(service, call)

    assert (again.status_code, again.json()["id"]) == (202, taken)
    assert "idempotent-replayed" not in again.headers
    replayed = forget(service, call)
    assert (replayed.headers["idempotent-replayed"], replayed.json()) == ("true", again.json())
    assert {request["id"] for request in client.requests()} - before == {taken}
    assert await_completed(client, taken)["attempt"] == 1


def forget(service, call):
    """Ask once, under the same key every time."""
    key = Settings(data_dir=service.data_dir).admin_key_file.read_text()
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "asked on Monday"}
    return httpx.post(
        f"{service.url}/v1/forget-requests", json=call, headers=headers, timeout=PATIENCE_S
    )


@pytest.mark.nightly
def test_the_dispatcher_killed(service, client, forgetting):
    kill([service.part("dispatcher")])
    assert await_completed(client, forgetting)["attempt"] == 1


@pytest.mark.nightly
def test_redis_killed_and_away_until_the_run_has_ended(service, client, forgetting):
    parts = service.parts()
    with service.unsupervised():
        kill([psutil.Process(service.servers.redis.pid())])
        assert await_completed(client, forgetting)["attempt"] == 1
    following = client.forget("digits", subject_ids=[next(subjects)])
    assert await_completed(client, following["id"])["attempt"] == 1
    assert service.parts() == parts


def test_redis_wiped_while_a_job_waits_and_another_is_carried_out(service, client, forgetting):
    client.define_model({**model("waiting", first_release="as_trained"), "dataset": "others"})
    until(lambda: client.model("waiting")["latest_run"]["state"] == "queued")
    with Redis.from_url(service.servers.redis_url) as connection:
        until(lambda: connection.llen("rq:queue:expunge-runs") == 1)
        connection.flushall()
    assert await_completed(client, forgetting)["attempt"] == 1
    until(lambda: client.model("waiting")["latest_run"]["state"] == "published")


def test_postgres_killed_and_away_for_longer_than_a_lease(service, client, forgetting):
    parts = service.parts()
    with service.unsupervised():
        postmaster = psutil.Process(service.servers.postgres.pid())
        kill([postmaster, *postmaster.children(recursive=True)])
        away_until = time.monotonic() + LEASE_S + 0.5
        while time.monotonic() < away_until:
            answer = client.http.get(f"/v1/forget-requests/{forgetting}")
            assert answer.status_code == 503
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:expunge:problem:unavailable"
            assert httpx.get(f"{service.url}/readyz", timeout=PATIENCE_S).status_code == 503
            assert httpx.get(f"{service.url}/livez", timeout=PATIENCE_S).status_code == 200
            time.sleep(0.2)
    run = await_completed(client, forgetting)
    assert run["attempt"] == 1
    assert service.parts() == parts


@pytest.mark.nightly
def test_the_supervisor_killed_and_started_again(service, client, forgetting):
    old = service.processes()
    assert len(old) == 5
    service.process.kill()
    service.process.wait()
    service.start()
    await_completed(client, forgetting)
    until(lambda: not any(is_alive(process) for process in old))
    until(lambda: len(service.processes()) == 4)


def test_sigterm_stops_everything_and_the_next_start_goes_on(service, client, forgetting):
    run_id = client.model(MODEL)["latest_run"]["id"]
    assert service.stop() == 0
    assert service.processes() == []
    assert f"run {run_id}: the worker was asked to stop" in service.log.read_text()
    assert service.servers.postgres.pid() is None
    assert service.servers.redis.pid() is None
    service.start()
    assert await_completed(client, forgetting)["attempt"] == 1


def assert_logs_hold_no_tracebacks_and_no_ids(service):
    """What must hold when all tests have done their worst."""
    text = service.log.read_text()
    assert "subject-" not in text
    assert "record-" not in text
    assert "Traceback" not in text
    assert "psycopg" not in text
    assert "[SQL" not in text

"""Every part of a running service killed in the middle of a run; nobody's request suffers.

One service for all tests: each makes it forget another person, with a run that takes seconds.
"""

import itertools
import json
import time
from collections import Counter

import httpx
import psutil
import pytest
from redis import Redis
from sqlalchemy import select

from app.certificates.tables import CertificateRow
from app.datasets.tables import ShardRow
from app.domain.states import BlobState, VersionState
from app.ledger.tables import ForgetRequestRow, LogEntryRow, ObligationRow, RunRow
from app.registry.tables import ModelRow, VersionRow
from app.storage.objects import LocalObjectStore
from app.storage.tables import BlobRow
from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.service import LEASE_S, Service, is_alive, kill, until
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
    service = Service(tmp_path_factory.mktemp("faults") / "data")
    try:
        service.start()
        with service.client() as client:
            client.define_dataset("digits", features=DATASET["features"], classes=10)
            client.push_records("digits", digits_parquet())
            client.define_dataset("others", features=DATASET["features"], classes=10)
            client.push_records("others", digits_parquet())
            client.define_model(SLOW)
            client.wait_for_model(MODEL, timeout_s=60)
        yield service
    finally:
        service.discard()


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client


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
    now = client.certified(MODEL)["number"]
    assert now > before
    for number in range(1, now):
        assert weights(client, number).status_code == 410
    assert weights(client, now).status_code == 200
    until(lambda: only_what_is_current_is_stored(service))
    with service.database() as database, database.transaction() as session:
        assert_ledger_in_order(session)


def weights(client, number):
    return client._http.get(f"/v1/models/{MODEL}/versions/{number}/weights")


def assert_ledger_in_order(session):
    """Every request completed once, every run published once, and the log tells exactly that."""
    entries = session.scalars(select(LogEntryRow).order_by(LogEntryRow.index)).all()
    assert [entry.index for entry in entries] == list(range(len(entries)))
    bodies = [json.loads(entry.body) for entry in entries]
    told = Counter((body["kind"], body.get("run") or body.get("request")) for body in bodies)
    runs = session.scalars(select(RunRow)).all()
    versions = session.scalars(select(VersionRow)).all()
    assert {run.state for run in runs} == {"published"}
    assert Counter(version.run_id for version in versions) == Counter(run.id for run in runs)
    numbers = {(version.model_id, version.number) for version in versions}
    assert len(numbers) == len(versions)
    assert all(told["version.published", run.id] == 1 for run in runs)
    certificates = session.scalars(select(CertificateRow.id)).all()
    assert sorted(certificates) == sorted(version.certificate_id for version in versions)
    assert sum(body["kind"] == "certificate.issued" for body in bodies) == len(certificates)
    requests = session.scalars(select(ForgetRequestRow)).all()
    assert {request.state for request in requests} == {"completed"}
    assert all(told["request.completed", request.id] == 1 for request in requests)
    published_by = {version.run_id: version.certificate_id for version in versions}
    for obligation in session.scalars(select(ObligationRow)):
        assert obligation.certificate_id == published_by[obligation.run_id]


def only_what_is_current_is_stored(service):
    """Say whether just the heads and the shards are stored, in the database and on the disk."""
    with service.database() as database, database.transaction() as session:
        heads = session.scalars(
            select(VersionRow.blob_id).join(ModelRow, ModelRow.head_version_id == VersionRow.id)
        ).all()
        current = {*heads, *session.scalars(select(ShardRow.blob_id))}
        query = select(BlobRow.id).where(BlobRow.state != BlobState.SHREDDED)
        stored = set(session.scalars(query))
        states = Counter(session.scalars(select(VersionRow.state)))
    on_disk = set(LocalObjectStore(service.data_dir / "blobs").names())
    return (
        stored == current == on_disk
        and states[VersionState.CERTIFIED] == len(heads)
        and states[VersionState.RETIRED] == 0
    )


def await_completed(client, request_id):
    """Wait for the request's end, through any outage; return its run."""
    request = until(
        lambda: (
            (request := client.request(request_id))["state"] in ("completed", "failed") and request
        )
    )
    assert request["state"] == "completed", request
    (obligation,) = request["obligations"]
    return until(lambda: client.run(obligation["run"]))


def test_the_worker_and_its_child_killed(service, client, forgetting):
    worker = service.part("worker")
    kill([worker, *worker.children(recursive=True)])
    assert await_completed(client, forgetting)["attempt"] == 2


def test_the_worker_killed_and_its_child_orphaned(service, client, forgetting):
    worker = service.part("worker")
    (child,) = worker.children()
    killed_at = time.monotonic()
    kill([worker])
    until(lambda: not is_alive(child), timeout_s=10)
    assert time.monotonic() - killed_at < 5
    assert client.model(MODEL)["latest_run"]["state"] == "queued"
    assert await_completed(client, forgetting)["attempt"] == 1


def test_the_child_killed(service, client, forgetting):
    worker = service.part("worker")
    kill(worker.children())
    assert await_completed(client, forgetting)["attempt"] == 2
    assert service.part("worker").pid == worker.pid


def test_the_api_killed(service, client, forgetting):
    kill([service.part("api")])
    assert await_completed(client, forgetting)["attempt"] == 1


def test_the_dispatcher_killed(service, client, forgetting):
    kill([service.part("dispatcher")])
    assert await_completed(client, forgetting)["attempt"] == 1


def test_redis_killed_and_away_until_the_run_has_ended(service, client, forgetting):
    parts = service.parts()
    with service.unsupervised():
        kill([psutil.Process(service.servers.redis_pid())])
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
        postmaster = psutil.Process(service.servers.postgres_pid())
        kill([postmaster, *postmaster.children(recursive=True)])
        away_until = time.monotonic() + LEASE_S + 0.5
        while time.monotonic() < away_until:
            answer = client._http.get(f"/v1/forget-requests/{forgetting}")
            assert answer.status_code == 503
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["type"] == "urn:expunge:problem:unavailable"
            assert httpx.get(f"{service.url}/readyz").status_code == 503
            assert httpx.get(f"{service.url}/livez").status_code == 200
            time.sleep(0.2)
    run = await_completed(client, forgetting)
    assert run["attempt"] == 1
    assert service.parts() == parts


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
    assert f"run {run_id}: the worker was told to stop" in service.log.read_text()
    assert service.servers.postgres_pid() is None
    assert service.servers.redis_pid() is None
    service.start()
    assert await_completed(client, forgetting)["attempt"] == 1


def test_logs_hold_no_tracebacks_and_no_ids(service, client, forgetting):
    await_completed(client, forgetting)
    text = service.log.read_text()
    assert "subject-" not in text
    assert "record-" not in text
    assert "Traceback" not in text
    assert "psycopg" not in text
    assert "[SQL" not in text

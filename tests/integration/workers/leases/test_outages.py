"""Runs while the object store is away: a real S3 server that is stopped and started again."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select

from app.domain.states import BlobState
from app.runtime.processes.stopping import StopSignal
from app.runtime.settings import Settings
from app.services import open_services
from app.storage.tables import BlobRow
from tests.support.patience import PATIENCE_S, until
from tests.support.s3 import ACCESS, S3Server
from tests.support.workshop import Workshop
from workers import jobs
from workers import run as run_module
from workers.leases import outages as patience

LEASE_S = 0.6


@pytest.fixture
def server():
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def settings(settings, server, monkeypatch):
    """Settings of a service whose objects lie in the bucket; also in the environment."""
    for name, value in {
        "S3_BUCKET": server.bucket,
        "S3_ENDPOINT": server.endpoint,
        "S3_REGION": ACCESS["region"],
        "S3_ACCESS_KEY": ACCESS["access_key"],
        "S3_SECRET_KEY": ACCESS["secret_key"],
        "LEASE_S": str(LEASE_S),
    }.items():
        monkeypatch.setenv(f"EXPUNGE_{name}", value)
    return Settings()


@pytest.fixture
def workshop(settings):
    services = open_services(settings)
    workshop = Workshop(services)
    workshop.define()
    yield workshop
    services.database.dispose()


@pytest.fixture
def stop(monkeypatch):
    stop = StopSignal()
    monkeypatch.setattr(jobs, "stop", stop)
    return stop


@pytest.fixture
def outage_at(server, monkeypatch):
    """Have the server stop when the run comes to a point."""

    def arm(point):
        def reach(reached):
            if reached == point:
                server.stop()

        monkeypatch.setattr(run_module, "reach", reach)

    return arm


def waits(caplog):
    return "waiting for a store: the object store does not answer" in caplog.text


@pytest.mark.parametrize("point", ["after_lease", "at_target"])
def test_a_run_goes_on_where_it_was_when_the_object_store_is_back(
    workshop, server, stop, outage_at, caplog, point
):
    outage_at(point)
    run_id = workshop.active_run()
    run = threading.Thread(target=jobs.execute_run, args=(run_id,))
    run.start()
    until(lambda: waits(caplog))
    first = workshop.run(run_id).lease_expires_at
    until(lambda: workshop.run(run_id).lease_expires_at > first + timedelta(seconds=3 * LEASE_S))
    server.start()
    run.join(PATIENCE_S)
    assert (workshop.run(run_id).state, workshop.run(run_id).attempt) == ("published", 1)
    with workshop.transaction() as session:
        assert set(session.scalars(select(BlobRow.state))) == {BlobState.LIVE}
        assert server.names() == set(session.scalars(select(BlobRow.id)))


def test_a_worker_that_is_told_to_stop_waits_for_no_object_store(
    workshop, server, stop, outage_at, caplog
):
    outage_at("at_target")
    run_id = workshop.active_run()
    run = threading.Thread(target=jobs.execute_run, args=(run_id,))
    run.start()
    until(lambda: waits(caplog))
    stop.set()
    run.join(PATIENCE_S)
    assert (workshop.run(run_id).state, workshop.run(run_id).attempt) == ("queued", 0)
    server.start()


def test_an_object_store_that_stays_away_costs_an_attempt_and_says_why(
    workshop, server, stop, outage_at, monkeypatch
):
    monkeypatch.setattr(patience, "_PATIENCE_S", 0.0)
    outage_at("after_lease")
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    assert (workshop.run(run_id).state, workshop.run(run_id).attempt) == ("queued", 1)
    server.start()
    monkeypatch.setattr(run_module, "reach", lambda point: None)
    jobs.execute_run(run_id)
    assert (workshop.run(run_id).state, workshop.run(run_id).attempt) == ("published", 2)

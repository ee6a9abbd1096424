"""Runs on several devices, through the worker's own entry: here each is a process on the CPU."""

import pytest
from sqlalchemy import select

from app.domain.states import BlobState
from app.evidence.certificates.signing import statement_of
from app.evidence.certificates.tables import CertificateRow
from app.runtime.spans import place_of_request, send_by
from app.storage.tables import BlobRow
from tests.support.collector import Collector
from tests.support.points import Points
from workers import jobs

POINTS = (
    *("follower_begun", "follower_training", "follower_noise", "follower_fine_tune"),
    *("mid_training", "mid_noise", "mid_fine_tune"),
    *("follower_connecting", "follower_gathering", "before_publish"),
)


@pytest.fixture(params=[2])
def devices(request):
    return request.param


@pytest.fixture
def workshop(workshop, monkeypatch, tmp_path, devices):
    monkeypatch.setenv("EXPUNGE_DEVICES", str(devices))
    monkeypatch.setenv("EXPUNGE_TEST_POINTS", str(tmp_path / "points"))
    workshop.points = Points(tmp_path / "points")
    return workshop


def work_on(workshop):
    run_id = workshop.active_run()
    jobs.execute_run(run_id)
    return workshop.run(run_id)


def mechanisms_of(workshop):
    with workshop.transaction() as session:
        rows = session.scalars(select(CertificateRow).order_by(CertificateRow.id)).all()
        return [statement_of(row.envelope)["predicate"]["mechanism"] for row in rows]


def blobs_of(workshop):
    with workshop.transaction() as session:
        rows = session.scalars(select(BlobRow).where(BlobRow.state == BlobState.LIVE))
        return sorted(row.id for row in rows)


@pytest.mark.slow  # it starts processes for each run
@pytest.mark.parametrize(
    ("devices", "policy"),
    [
        (2, {"mechanism": "gradient_clipping", "budget_epochs": 8}),
        pytest.param(3, {"mechanism": "retraining"}, marks=pytest.mark.nightly),
    ],
    indirect=["devices"],
)
def test_a_run_trains_forgets_and_says_on_how_many_devices(workshop, devices, policy, monkeypatch):
    workshop.define(**policy)
    trained = work_on(workshop)
    assert trained.state == "published", trained.failure_reason
    train, _ = workshop.split()
    request_id = workshop.forget(train[0])
    workshop.dispatch()
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        forgotten = work_on(workshop)
        send_by(None)
        root = place_of_request(request_id)
        spans = [span for span in collector.spans() if span.trace == root.trace]
    assert forgotten.state == "published", forgotten.failure_reason
    assert workshop.request(request_id).state == "completed"
    assert "erase" in {span.name for span in spans}
    (run,) = (span for span in spans if span.name == "run")
    (published,) = (span for span in spans if span.name == "publishing")
    assert (run.parent, published.parent) == (root.span, run.span)
    assert published.attributes["process.pid"] != run.attributes["process.pid"]
    first, second = mechanisms_of(workshop)
    for mechanism in (first, second):
        assert (mechanism["devices"], mechanism["parallelism"]) == (devices, "full_shard")


def test_what_one_process_computes_says_nothing_of_devices(workshop):
    workshop.define(
        architecture="linear_head",
        mechanism="exact_training",
        recipe={"epochs": 4, "batch_size": 4, "held_out_fraction": 0.25},
    )
    run = work_on(workshop)
    assert run.state == "published", run.failure_reason
    (mechanism,) = mechanisms_of(workshop)
    assert {"devices", "parallelism"}.isdisjoint(mechanism)


@pytest.mark.nightly  # it starts processes for each attempt
@pytest.mark.parametrize("devices", [2, 3], indirect=True)
def test_a_process_killed_at_any_phase_leaves_nothing_and_the_next_attempt_goes_on(
    workshop, devices, caplog, monkeypatch
):
    monkeypatch.setenv("EXPUNGE_MAX_ATTEMPTS", str(len(POINTS) + 1))
    workshop.define(mechanism="gradient_clipping", budget_epochs=8)
    before = blobs_of(workshop)
    for attempt, point in enumerate(POINTS, 1):
        caplog.clear()
        workshop.points.arm(point, "SIGKILL")
        run = work_on(workshop)
        assert workshop.points.waiting() == [], point
        assert (run.state, run.attempt) == ("queued", attempt), point
        assert "of this run ended" in caplog.text, point
        assert blobs_of(workshop) == before, point
        assert mechanisms_of(workshop) == [], point
    last = work_on(workshop)
    assert last.state == "published", last.failure_reason
    (mechanism,) = mechanisms_of(workshop)
    assert mechanism["devices"] == devices

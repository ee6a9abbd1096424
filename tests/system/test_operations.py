"""A service as it is run: figures of a real run, signs of life, and logs for machines."""

import json

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.digits import DATASET, RECIPE, digits_parquet, model
from tests.support.patience import PATIENCE_S, until
from tests.support.service import Service
from tests.support.slow import FACTORY

# Some seconds of noisy steps, so that a scrape meets them.
SLOW = {
    **model(parameters={"steps": 150}, budget_epochs=154, first_release="as_trained"),
    "architecture": {"name": "custom", "factory": FACTORY},
    "recipe": {**RECIPE, "batch_size": 1000},
}


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path / "data", EXPUNGE_LOG_FORMAT="json", EXPUNGE_METRICS_PUBLIC="true")
    try:
        service.start()
        yield service
    finally:
        service.discard()


def ready(service):
    answer = httpx.get(f"{service.url}/readyz", timeout=PATIENCE_S)
    return answer.status_code, answer.json()


def figures(service):
    """Return the samples of a scrape by name; each is a list of (labels, value)."""
    found = {}
    text = httpx.get(f"{service.url}/metrics", timeout=PATIENCE_S).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found, name, **labels):
    return sum(v for own, v in found.get(name, ()) if labels.items() <= own.items())


def logged(service):
    lines = service.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_a_run_is_seen_in_figures_and_logs(service):
    with service.client() as client:
        client.define_dataset(**DATASET)
        client.push_records("digits", digits_parquet())
        client.define_model(SLOW)
        client.wait_for_model("digits-mlp", timeout_s=PATIENCE_S)
        request = client.forget("digits", subject_ids=["subject-0"])
        stepping = until(
            lambda: (
                value(f := figures(service), "expunge_run_steps_total", phase="unlearning") and f
            )
        )
        assert value(stepping, "expunge_run_planned_steps", model="digits-mlp") == 150
        assert value(stepping, "expunge_workers", state="busy") == 1
        assert value(stepping, "expunge_runs", kind="unlearn", state="running") == 1
        assert value(stepping, "expunge_forget_requests", state="unlearning") == 1
        assert value(stepping, "expunge_obligations", state="running") == 1
        assert 29 < value(stepping, "expunge_earliest_deadline_days") < 30
        until(lambda: client.request(request["id"])["state"] == "completed")
    after = until(lambda: not value(f := figures(service), "expunge_blobs_to_shred") and f)
    assert value(after, "expunge_forget_requests", state="completed") == 1
    assert value(after, "expunge_runs", kind="unlearn", state="published") == 1
    assert "expunge_run_steps_total" not in after
    assert "expunge_earliest_deadline_days" not in after
    of_run = [line for line in logged(service) if "run" in line]
    assert {line["run"][:4] for line in of_run} == {"run_"}
    assert all(len(line["worker"]) == 32 for line in of_run)


def test_a_service_shows_that_it_lives_and_what_is_away(service):
    until(lambda: ready(service)[1]["status"] == "ok")
    alive = figures(service)
    assert value(alive, "expunge_workers", state="idle") == value(alive, "expunge_dispatchers") == 1
    with service.unsupervised():
        service.servers.stop_redis()
        until(lambda: ready(service)[1]["redis"] == "unreachable")  # remembered for a second
        status, parts = ready(service)
        assert (status, parts["status"], parts["redis"]) == (200, "degraded", "unreachable")
        service.servers.stop_postgres()
        until(lambda: ready(service)[1]["database"] == "unreachable")
        status, parts = ready(service)
        assert (status, parts["status"], parts["database"]) == (503, "unavailable", "unreachable")
    until(lambda: ready(service)[1]["status"] == "ok")
    assert service.stop() == 0
    access = [line for line in logged(service) if line["logger"] == "expunge.access"]
    assert {(line["route"], line["status"]) for line in access} >= {
        ("/readyz", 200),
        ("/readyz", 503),
        ("/metrics", 200),
    }
    assert len({line["request_id"] for line in access}) == len(access)

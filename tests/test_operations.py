"""A service as it is run: its parts show that they live, and its logs are machine-readable."""

import json

import httpx
import pytest

from tests.support.service import Service, until


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path / "data", EXPUNGE_LOG_FORMAT="json", EXPUNGE_METRICS_PUBLIC="true")
    try:
        service.start()
        yield service
    finally:
        service.discard()


def ready(service):
    answer = httpx.get(f"{service.url}/readyz", timeout=10)
    return answer.status_code, answer.json()


def test_a_service_shows_that_it_lives_and_logs_in_json(service):
    until(lambda: ready(service)[1]["status"] == "ok")
    figures = httpx.get(f"{service.url}/metrics", timeout=10).text
    assert 'expunge_workers{state="idle"} 1.0' in figures
    assert "expunge_dispatchers 1.0" in figures
    with service.unsupervised():
        service.servers.stop_redis()
        status, parts = ready(service)
        assert (status, parts["status"], parts["redis"]) == (200, "degraded", "unreachable")
        service.servers.stop_postgres()
        status, parts = ready(service)
        assert (status, parts["status"], parts["database"]) == (503, "unavailable", "unreachable")
    until(lambda: ready(service)[1]["status"] == "ok")
    assert service.stop() == 0
    lines = [line for line in service.log.read_text().splitlines() if line.startswith("{")]
    access = [line for text in lines if (line := json.loads(text))["logger"] == "expunge.access"]
    assert {(line["route"], line["status"]) for line in access} >= {
        ("/readyz", 200),
        ("/readyz", 503),
        ("/metrics", 200),
    }
    assert len({line["request_id"] for line in access}) == len(access)
    assert any("worker" in json.loads(text) for text in lines)

"""``/metrics``: every family against a real service, and who may read it."""

from collections.abc import Callable, Iterator
from importlib.metadata import version

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from rq import Worker
from rq.serializers import JSONSerializer
from sqlalchemy import text

from app.cli.application import create_app
from app.domain.states import Phase, Scope
from app.ledger import runs
from app.operations.monitoring.queue_state import QUEUE, note_dispatcher
from app.services import Services, open_services
from app.storage.blobs import doom
from tests.integration.app.api.conftest import CallerOf
from tests.support.stored import live
from tests.support.workshop import LEASE_S, Workshop

DAY_S = 86400.0
CALL = ("method", "route", "status")
Figures = Callable[..., dict[tuple[str, ...], float]]


@pytest.fixture
def scrape(caller_of: CallerOf) -> Figures:
    """Return what a scrape says of one sample's name, by the values of the labels asked for."""
    client = caller_of(Scope.LOG_READ)

    def figures(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name == name
        }

    return figures


@pytest.fixture
def owing(workshop: Workshop) -> Workshop:
    """A model with a version, a request that waits for a run, and one that is completed."""
    workshop.train()
    _learned(workshop, 0)
    workshop.unlearn()
    workshop.services.clean_up()
    _learned(workshop, 1)
    return workshop


def _learned(workshop: Workshop, number: int) -> str:
    return workshop.forget(workshop.split()[0][number])


def _let_pass(workshop: Workshop, days: float) -> None:
    workshop.forged = True
    with workshop.transaction() as session:
        session.execute(
            text(
                "UPDATE forget_requests SET received_at = received_at - make_interval(secs => :s),"
                " due_at = due_at - make_interval(secs => :s)"
            ),
            {"s": days * DAY_S},
        )


def test_requests_by_state_and_age(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    counts = scrape("expunge_forget_requests", "state")
    assert counts[("accepted",)] == counts[("completed",)] == 1
    assert counts[("failed",)] == 0
    _let_pass(owing, 10)
    ages = scrape("expunge_open_forget_request_age_seconds_bucket", "state", "le")
    assert ages[("accepted", str(7 * DAY_S))] == 0
    assert ages[("accepted", str(14 * DAY_S))] == ages[("accepted", "+Inf")] == 1
    assert not any(state == "completed" for state, _ in ages)
    oldest = scrape("expunge_oldest_forget_request_age_seconds", "state")
    assert oldest[("accepted",)] == pytest.approx(10 * DAY_S, abs=60)


def test_deadlines(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    assert scrape("expunge_earliest_deadline_days")[()] == pytest.approx(30, abs=0.01)
    assert scrape("expunge_forget_requests_due_soon")[()] == 0
    _let_pass(owing, 25)
    owing.services.note_deadlines()
    assert scrape("expunge_forget_requests_due_soon")[()] == 1
    assert scrape("expunge_forget_requests_overdue")[()] == 0
    _let_pass(owing, 6)
    assert scrape("expunge_earliest_deadline_days")[()] == pytest.approx(-1, abs=0.01)
    assert scrape("expunge_forget_requests_due_soon")[()] == 0
    assert scrape("expunge_forget_requests_overdue")[()] == 1


def test_without_open_requests_there_is_no_deadline(scrape: Figures, redis: Redis) -> None:
    assert scrape("expunge_earliest_deadline_days") == {}
    assert scrape("expunge_forget_requests_overdue")[()] == 0


def test_obligations_and_runs(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    assert scrape("expunge_obligations", "model", "state") == {
        ("model", "certified"): 1,
        ("model", "open"): 1,
    }
    assert scrape("expunge_runs", "kind", "state") == {
        ("train", "published"): 1,
        ("unlearn", "published"): 1,
    }
    owing.dispatch()
    held = owing.begun()
    owing.give_up(held, permanent=False)
    owing.lease()
    assert scrape("expunge_runs", "kind", "state")[("unlearn", "leased")] == 1
    assert scrape("expunge_run_attempts", "kind", "state")[("unlearn", "leased")] == 2
    assert scrape("expunge_active_run_attempt", "model", "kind", "state") == {
        ("model", "unlearn", "leased"): 2
    }


def test_steps_of_a_run_that_goes(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    owing.dispatch()
    held = owing.begun()
    assert scrape("expunge_run_steps_total", "model", "kind", "phase") == {}
    with owing.transaction() as session:
        progress = {"phase": Phase.UNLEARNING, "step": 17, "total_steps": 40}
        runs.heartbeat(session, held.run_id, held.token, lease_s=LEASE_S, progress=progress)
    labels = ("model", "unlearn", "unlearning")
    assert scrape("expunge_run_steps_total", "model", "kind", "phase") == {labels: 17}
    assert scrape("expunge_run_planned_steps", "model", "kind", "phase") == {labels: 40}
    owing.publish(held)
    assert scrape("expunge_run_steps_total", "model", "kind", "phase") == {}


def test_the_outbox(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    waiting = len(owing.waiting("schedule_model"))
    assert waiting >= 1
    assert scrape("expunge_outbox_depth", "topic")[("schedule_model",)] == waiting
    with owing.transaction() as session:
        session.execute(text("UPDATE outbox SET available_at = now() - interval '1 hour'"))
    oldest = scrape("expunge_outbox_oldest_age_seconds", "topic")
    assert oldest[("schedule_model",)] == pytest.approx(3600, abs=60)
    with owing.transaction() as session:
        session.execute(text("UPDATE outbox SET available_at = now() + interval '1 hour'"))
    assert scrape("expunge_outbox_oldest_age_seconds", "topic")[("schedule_model",)] == 0


def test_the_log(owing: Workshop, scrape: Figures, redis: Redis, services: Services) -> None:
    with owing.transaction() as session:
        entries = session.scalar(text("SELECT count(*) FROM log_entries"))
        signed = session.scalar(text("SELECT max(size) FROM log_checkpoints"))
    # The scraping key's own creation is an entry too.
    assert scrape("expunge_log_entries")[()] == entries
    assert scrape("expunge_log_unsigned_entries")[()] == entries - signed > 0
    assert 0 <= scrape("expunge_log_checkpoint_age_seconds")[()] < 60


def test_an_empty_log_has_no_checkpoint(services: Services, redis: Redis) -> None:
    public = open_services(services.settings.model_copy(update={"metrics_public": True}))
    body = TestClient(create_app(public)).get("/metrics").text
    assert "expunge_log_entries 0.0" in body
    assert "\nexpunge_log_checkpoint_age_seconds" not in body
    public.database.dispose()


def test_what_waits_to_be_shredded(owing: Workshop, scrape: Figures, redis: Redis) -> None:
    assert scrape("expunge_blobs_to_shred")[()] == 0
    abandoned = live(owing.services.blobs, "weights", b"weights")
    with owing.transaction() as session:
        doom(session, abandoned.id)
    assert scrape("expunge_blobs_to_shred")[()] == 1
    owing.services.blobs.sweep()
    assert scrape("expunge_blobs_to_shred")[()] == 0
    assert scrape("expunge_objects_to_delete")[()] == 0
    with owing.transaction() as session:
        session.execute(
            text("UPDATE blobs SET object_deleted_at = NULL WHERE id = :id"), {"id": abandoned.id}
        )
    assert scrape("expunge_objects_to_delete")[()] == 1


@pytest.fixture
def worker(redis: Redis) -> Iterator[Worker]:
    worker = Worker([QUEUE], connection=redis, serializer=JSONSerializer)
    worker.register_birth()
    yield worker
    worker.register_death()


def test_the_queue_and_who_is_alive(scrape: Figures, redis: Redis, worker: Worker) -> None:
    worker.set_state("idle")
    worker.queues[0].enqueue_call("os.getpid")
    note_dispatcher(redis, "dispatcher_1")
    note_dispatcher(redis, "dispatcher_1")
    assert scrape("expunge_queue_depth")[()] == 1
    assert scrape("expunge_workers", "state") == {("busy",): 0, ("idle",): 1}
    assert 0 <= scrape("expunge_worker_heartbeat_age_seconds")[()] < 30
    assert scrape("expunge_dispatchers")[()] == 1


def test_the_silent_are_not_alive(scrape: Figures, redis: Redis, worker: Worker) -> None:
    redis.hset(worker.key, "last_heartbeat", "2026-01-01T00:00:00.000000Z")
    redis.zadd("expunge:dispatchers", {"dispatcher_1": redis.time()[0] - 31})
    assert sum(scrape("expunge_workers", "state").values()) == 0
    assert scrape("expunge_worker_heartbeat_age_seconds") == {}
    assert scrape("expunge_dispatchers")[()] == 0


def test_requests_of_the_api_by_template(
    scrape: Figures, redis: Redis, caller_of: CallerOf
) -> None:
    before = scrape("expunge_http_request_duration_seconds_count", *CALL)
    after = scrape("expunge_http_request_duration_seconds_count", *CALL)
    assert after[("GET", "/metrics", "200")] == before.get(("GET", "/metrics", "200"), 0) + 1
    buckets = scrape("expunge_http_request_duration_seconds_bucket", *CALL, "le")
    assert buckets[("GET", "/metrics", "200", "+Inf")] >= 2


def test_an_id_in_a_path_is_no_label(caller_of: CallerOf) -> None:
    client = caller_of(Scope.LOG_READ, Scope.FORGET_READ)
    client.get("/v1/forget-requests/fr_marker")
    client.get("/marker")
    body = client.get("/metrics").text
    assert 'route="/v1/forget-requests/{request_id}",status="404"' in body
    assert 'route="unmatched",status="404"' in body
    assert "marker" not in body


def test_build(scrape: Figures, redis: Redis) -> None:
    ((labels, value),) = scrape("expunge_build_info", "version").items()
    assert value == 1
    assert labels == (version("expunge"),)
    assert scrape("process_resident_memory_bytes")[()] > 0


def test_what_cannot_be_read_is_absent_and_the_rest_is_there(services: Services) -> None:
    settings = services.settings.model_copy(
        update={"redis_url": "redis://127.0.0.1:1", "metrics_public": True}
    )
    without_redis = open_services(settings)
    body = TestClient(create_app(without_redis)).get("/metrics").text
    assert 'expunge_source_up{source="redis"} 0.0' in body
    assert 'expunge_source_up{source="database"} 1.0' in body
    assert "expunge_queue_depth" not in body
    assert "expunge_log_entries" in body
    without_redis.database.dispose()


def test_a_key_is_needed_unless_the_operator_makes_the_figures_public(
    caller_of: CallerOf, services: Services, redis: Redis
) -> None:
    assert caller_of().get("/metrics").status_code == 401
    assert caller_of(Scope.FORGET_READ).get("/metrics").status_code == 403
    public = open_services(services.settings.model_copy(update={"metrics_public": True}))
    assert TestClient(create_app(public)).get("/metrics").status_code == 200
    public.database.dispose()


def test_a_hundred_thousand_finished_requests_are_one_number(
    workshop: Workshop, scrape: Figures, redis: Redis
) -> None:
    workshop.forged = True
    request = workshop.forget("record-1")
    with workshop.transaction() as session:
        session.execute(
            text(
                "INSERT INTO forget_requests (id, dataset_id, api_key_id, request_digest, salt,"
                " state, forget_epoch, record_count, push_count, received_at, due_at, completed_at)"
                " SELECT 'fr_' || i, dataset_id, api_key_id, request_digest, salt, 'completed',"
                " forget_epoch, 1, 1, received_at, due_at, received_at"
                " FROM forget_requests, generate_series(1, 100000) AS i WHERE id = :id"
            ),
            {"id": request},
        )
    assert scrape("expunge_forget_requests", "state")[("completed",)] >= 100000
    assert scrape("expunge_oldest_forget_request_age_seconds", "state").keys() <= {("certified",)}

"""One trace from the call to the erasure, from a real service to a real collector."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runtime.spans import place_of_request
from tests.support.collector import Collector, Seen, assert_connected
from tests.support.digits import DATASET, model
from tests.support.markers import search_bytes
from tests.support.patience import PATIENCE_S, until
from tests.support.people import People
from tests.support.receiver import Receiver
from tests.support.service import Service, running

PHASES = {"loading", "unlearning", "fine_tuning", "evaluating", "publishing"}
NAMES = {"forget request", "plan", "enqueue", "run", "erase", "callback", "publish", *PHASES}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Service]:
    data_dir = tmp_path_factory.mktemp("traces") / "data"
    shelf = data_dir.with_suffix(".shelf")
    shelf.mkdir()
    with running(
        data_dir,
        FASTAPI_OTEL_AUTO_CONFIGURE="true",  # its spans would name paths
        EXPUNGE_CALLBACK_ALLOW_PRIVATE="true",
        EXPUNGE_PUBLISHERS=f'{{"shelf": {{"kind": "folder", "path": "{shelf}"}}}}',
        **collector.environment,
    ) as service:
        yield service


@pytest.fixture(scope="module")
def people() -> People:
    return People.invent(200)


@pytest.fixture(scope="module")
def request_id(service: Service, people: People) -> str:
    """A request that is completed, after the worker's child was killed once in its noisy phase."""
    with service.client() as client, Receiver() as receiver:
        client.define_dataset(**DATASET)
        client.push_records("digits", people.parquet())
        client.define_model(model("numbers"))
        client.wait_for_model("numbers", timeout_s=PATIENCE_S)
        client.http.put("/v1/models/numbers/targets/shelf").raise_for_status()
        service.points.arm("mid_noise", "SIGKILL")
        request = client.forget(
            "digits",
            subject_ids=[people.subject(3)],
            external_id=f"ticket of {people.token}@example.com",
            idempotency_key=f"{people.token}@example.com",
            status_callback_urls=[receiver.url],
        )
        done = client.wait_for_request(request["id"], timeout_s=PATIENCE_S)
        assert done["state"] == "completed"
        until(lambda: len(receiver.received) == 4)
    return str(request["id"])


@pytest.fixture(scope="module")
def trace(collector: Collector, request_id: str) -> list[Seen]:
    wanted = place_of_request(request_id).trace

    def whole() -> list[Seen]:
        spans = [span for span in collector.spans() if span.trace == wanted]
        told = {span.name for span in spans} >= NAMES
        return spans if told and [s.name for s in spans].count("callback") == 4 else []

    return until(whole)


def test_a_request_has_one_trace_across_all_processes(service: Service, trace: list[Seen]) -> None:
    assert_connected(trace)
    assert {span.name for span in trace} == NAMES
    pids = {span.name: span.attributes["process.pid"] for span in trace if not span.error}
    api, dispatcher, worker = service.parts()
    assert pids["forget request"] == api
    assert {pids[name] for name in ("plan", "enqueue", "callback", "publish")} == {dispatcher}
    assert len({pids[name] for name in ("run", *PHASES)}) == 1
    assert pids["run"] not in (api, dispatcher, worker)  # a child of the worker


def test_a_killed_attempt_and_the_next_are_in_the_trace(trace: list[Seen]) -> None:
    runs = sorted((s for s in trace if s.name == "run"), key=lambda span: span.begun_ns)
    assert [run.attributes.get("error.type") for run in runs] == ["ProcessLostError", None]
    assert [run.attributes["expunge.attempt"] for run in runs] == [1, 2]
    assert [run.error for run in runs] == [True, False]
    below = [span.name for span in trace if span.parent == runs[1].span]
    assert sorted(below) == sorted(PHASES)
    assert not [span for span in trace if span.parent == runs[0].span]


def test_steps_are_in_order_and_in_their_time(trace: list[Seen]) -> None:
    begun = {s.name: s.begun_ns for s in trace if not s.error}
    order = ["forget request", "plan", "run", "unlearning", "publishing", "erase"]
    assert order == sorted(order, key=lambda name: begun[name])
    assert all(span.ended_ns >= span.begun_ns for span in trace)


def test_no_id_of_a_person_a_record_a_ticket_or_a_request_leaves(
    collector: Collector, people: People, request_id: str, trace: list[Seen]
) -> None:
    sent = b"\0".join(collector.bodies())
    assert b"numbers" in sent
    assert {each.path for each in collector.receiver.received} == {"/v1/traces"}
    assert {span.name for span in collector.spans()} == NAMES | {"training"}
    assert search_bytes({"spans": sent}, [people.ids(), *people.features()]) == []
    for word in (people.token, request_id, request_id.removeprefix("fr_"), "ticket", "sesame"):
        assert word.encode() not in sent


def test_what_is_left_is_sent_when_the_service_ends(tmp_path: Path, people: People) -> None:
    with Collector() as collector:
        variables = collector.environment | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        with running(tmp_path / "data", **variables) as service:
            with service.client() as client:
                client.define_dataset(**DATASET)
                client.push_records("digits", people.parquet())
                request = client.forget("digits", subject_ids=[people.subject(3)])
                client.wait_for_request(request["id"], timeout_s=PATIENCE_S)
            assert collector.spans() == []
            assert service.stop() == 0
        assert {span.name for span in collector.spans()} == {"forget request", "erase"}

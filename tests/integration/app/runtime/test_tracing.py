"""Sending spans: by OTLP, as standard variables say, in a thread that ends with the work."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.runtime import spans as handing
from app.runtime.spans import Facts, Span, Step, Work, hand_over, span_of_request
from tests.support.collector import Collector, assert_connected, sending
from tests.support.patience import PATIENCE_S, until
from tests.support.receiver import status


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


def _trace(request: str) -> list[Span]:
    work = Work(("run", f"run of {request}", 1), [request])
    facts = Facts(model="digits", attempt=2)
    return [
        span_of_request(request, begun_ns=1_000, state="accepted"),
        *work.spans(Step.RUN, begun_ns=2_000, ended_ns=9_000, facts=facts, error="PlanError"),
        work.part("loading", begun_ns=3_000, ended_ns=4_000),
    ]


def test_spans_arrive_as_they_were_handed_over(collector: Collector) -> None:
    with sending():
        hand_over(lambda: _trace("fr_1"))
        collector.named("loading")
    spans = {span.name: span for span in collector.spans()}
    assert_connected(list(spans.values()))
    run, root = spans["run"], spans["forget request"]
    assert (run.begun_ns, run.ended_ns, run.parent) == (2_000, 9_000, root.span)
    assert run.attributes == {
        "expunge.model": "digits",
        "expunge.attempt": 2,
        "expunge.requests": 1,
        "error.type": "PlanError",
        "process.pid": os.getpid(),
    }
    assert [run.error, root.error] == [True, False]
    assert (root.kind, run.kind) == (2, 1)  # of a server, internal
    assert root.resource["service.name"] == "expunge"


def test_standard_variables_name_the_service_and_choose_traces(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "forgetting")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=here")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    with sending():
        for number in range(40):
            hand_over(lambda number=number: _trace(f"fr_{number}"))  # type: ignore[misc]
        collector.named("run")  # it runs; the rest is sent at the end
    spans = collector.spans()
    assert {(s.resource["service.name"], s.resource["host.name"]) for s in spans} == {
        ("forgetting", "here")
    }
    chosen = {span.trace for span in spans}
    assert 5 < len(chosen) < 35
    assert len(spans) == 3 * len(chosen)
    assert_connected(spans)


def test_a_collector_that_takes_nothing_is_told_of_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.receiver.answers = [status(400), status(400), status(200)]
    with sending():
        for number in range(3):
            hand_over(lambda number=number: _trace(f"fr_{number}"))  # type: ignore[misc]
            until(lambda number=number: len(collector.bodies()) > number)  # type: ignore[misc]
    told = caplog.text
    assert told.count("spans are lost: the collector does not take them") == 1
    assert "400" not in told


def test_a_collector_that_is_gone_delays_the_end_alone(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with sending():
        hand_over(lambda: _trace("fr_1") * 20)  # it waits: nothing has been tried
        begun = time.monotonic()
    assert time.monotonic() - begun < PATIENCE_S


def test_what_is_closed_has_sent_all_runs_no_thread_and_starts_again(collector: Collector) -> None:
    with sending():
        for number in range(1, 3):
            assert _senders() == 0
            hand_over(lambda: _trace("fr_1"))
            assert _senders() == 1
            handing.close()
            assert len(collector.spans()) == 3 * number
    assert _senders() == 0


def _senders() -> int:
    return sum(thread.name.startswith("Otel") for thread in threading.enumerate())


def test_threads_do_not_mix_up_their_spans(collector: Collector) -> None:
    requests = [f"fr_{number}" for number in range(200)]
    with sending(), ThreadPoolExecutor(8) as pool:
        for request in requests:
            pool.submit(hand_over, lambda request=request: _trace(request))  # type: ignore[misc]
    assert_connected(collector.spans())
    sent = {(span.trace, span.span, span.name) for span in collector.spans()}
    made = [each for request in requests for each in _trace(request)]
    assert sent == {(*each.place, str(each.name)) for each in made}

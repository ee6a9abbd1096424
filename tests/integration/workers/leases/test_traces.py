"""What traces say of a request's way, step by step, in this process."""

import time
from contextlib import suppress
from dataclasses import replace

import pytest

from app.domain.errors import LeaseLostError, PlanError
from app.ledger.scheduling import schedule_model
from app.registry.forecasts import Occasion
from app.runtime.locations import redis_connection
from app.runtime.processes.stopping import StopSignal
from app.runtime.spans import place_of_request
from tests.support.collector import assert_connected, handed_over
from tests.support.patience import until
from tests.support.workshop import DATASET
from workers.dispatcher import Dispatcher
from workers.leases.lease import Lease
from workers.mechanisms import lineage
from workers.queue import open_queue

OF_A_RUN = ["loading", "unlearning", "fine_tuning", "evaluating", "publishing"]
WAY = ["forget request", "plan", "enqueue", "run", *OF_A_RUN, "erase"]


@pytest.fixture
def trained(workshop, work):
    workshop.define()
    work()
    return workshop


@pytest.fixture
def spans(trained):
    """What is handed over from here on."""
    with handed_over() as spans:
        yield spans


def trace_of(spans, request_id):
    """Return the spans of a request's trace, in the order in which they began."""
    trace = place_of_request(request_id).trace
    return sorted((s for s in spans if s.place.trace == trace), key=lambda span: span.begun_ns)


def names(spans):
    return [str(span.name) for span in spans]


def erased(spans, count=1):
    until(lambda: names(spans).count("erase") == count)


def test_one_trace_tells_of_the_whole_way(trained, spans, work):
    request_id = trained.forget(trained.split()[0][0])
    work()
    erased(spans)
    assert_connected(spans)
    trace = trace_of(spans, request_id)
    assert len(trace) == len(spans)
    assert sorted(names(trace)) == sorted(WAY)
    by_name = {str(span.name): span for span in trace}
    root, run = by_name["forget request"], by_name["run"]
    assert {by_name[name].parent for name in OF_A_RUN} == {run.place.span}
    assert {by_name[n].parent for n in ("plan", "enqueue", "run", "erase")} == {root.place.span}
    assert [name for name in names(trace) if name in OF_A_RUN] == OF_A_RUN
    for phase in OF_A_RUN:
        assert run.begun_ns <= by_name[phase].begun_ns <= by_name[phase].ended_ns <= run.ended_ns
    row = trained.runs()[-1]
    assert (run.facts.model, run.facts.run, run.facts.run_kind) == ("model", row.id, "unlearn")
    assert (run.facts.mechanism, run.facts.attempt) == ("gradient_clipping", 1)
    assert by_name["plan"].facts.run == row.id
    assert root.facts.state == "accepted"
    assert not [span for span in trace if span.error]


def test_requests_that_share_a_run_have_it_in_their_traces_and_its_phases_once(
    trained, spans, work
):
    records = trained.split()[0]
    requests = [trained.forget(record) for record in records[:3]]
    work()
    erased(spans, 3)
    assert_connected(spans)
    traces = [trace_of(spans, each) for each in requests]
    runs = [span for trace in traces for span in trace if span.name == "run"]
    assert len(runs) == 3
    assert names(spans).count("loading") == 1
    (whole,) = (span for span in runs if len(span.links) == 2)
    others = {place_of_request(each).trace for each in requests} - {whole.place.trace}
    assert {trace for trace, _ in whole.links} == others
    assert all(span.links == (whole.place,) for span in runs if span is not whole)
    assert {span.facts.requests for span in runs} == {3}


def test_what_is_certified_at_once_says_so(trained, spans, work):
    request_id = trained.forget(trained.split()[1][0])
    work()
    erased(spans)
    trace = trace_of(spans, request_id)
    assert names(trace) == ["forget request", "erase"]
    assert trace[0].facts.state == "certified"


def test_a_refused_or_repeated_request_has_no_trace_of_its_own(trained, spans, work):
    record = trained.split()[1][0]
    request_id = trained.forget(record, external_id="ticket-9")
    assert trained.forget(record, external_id="ticket-9") == request_id
    with pytest.raises(Exception, match="unknown"):
        trained.forget("record-4711")
    work()
    erased(spans)
    assert names(spans).count("forget request") == 1


def test_attempts_that_fail_tell_the_type_and_no_value(trained, spans, work, monkeypatch):
    record = trained.split()[0][0]
    asked = []

    def break_twice(plan):
        asked.append(plan)
        if len(asked) < 3:
            raise RuntimeError(f"{record} is [0.25, 1.5]")
        return real(plan)

    real = lineage.rule_of
    monkeypatch.setattr(lineage, "rule_of", break_twice)
    request_id = trained.forget(record)
    work()
    until(lambda: (work(), trained.request(request_id).state)[1] == "completed")
    erased(spans)
    assert_connected(spans)
    trace = trace_of(spans, request_id)
    runs = [span for span in trace if span.name == "run"]
    assert [(run.facts.attempt, run.error) for run in runs] == [
        (1, "RuntimeError"),
        (2, "RuntimeError"),
        (3, None),
    ]
    failed = [span.error for span in trace if span.name == "unlearning"]
    assert failed == ["RuntimeError", "RuntimeError", None]
    assert "0.25" not in str(spans)


def test_of_a_worker_that_died_the_dispatcher_tells_and_the_worker_no_more(
    trained, spans, services, work
):
    request_id = trained.forget(trained.split()[0][0])
    trained.dispatch()
    stop = StopSignal()
    lease = Lease.take(services.database, trained.active_run(), lease_s=0.01, stop=stop)
    time.sleep(0.05)
    settings = services.settings.model_copy(update={"lease_s": 0.01})
    queue = open_queue(redis_connection(services.settings))
    Dispatcher(replace(services, settings=settings), queue)._requeue_silent_runs()
    (died,) = until(lambda: [span for span in spans if span.name == "run"])
    assert (died.error, died.facts.attempt) == ("ProcessLostError", 1)
    with suppress(LeaseLostError), lease:
        until(lease._lost.is_set)
        lease.check()
    work()
    erased(spans)
    assert_connected(spans)
    runs = [span for span in trace_of(spans, request_id) if span.name == "run"]
    assert [run.error for run in runs] == ["ProcessLostError", None]


def test_a_plan_that_is_refused_tells_why_by_its_type(trained, spans, services, monkeypatch):
    def refuse(*_):
        raise PlanError("epsilon 0.001 is out of reach")

    request_id = trained.forget(trained.split()[0][0])
    monkeypatch.setattr(Occasion, "forecast", refuse)
    schedule_model(services.database, trained.model().id)
    (plan,) = until(lambda: [span for span in spans if span.name == "plan"])
    assert (plan.error, plan.facts.run) == ("PlanError", None)
    assert_connected(trace_of(spans, request_id))


def test_a_training_has_a_trace_of_its_own(workshop, work):
    with handed_over() as spans:
        workshop.define()
        work()
        until(lambda: "run" in names(spans))
    assert_connected(spans)
    assert len({span.place.trace for span in spans}) == 1
    assert sorted(names(spans)) == sorted(["run", "training", *OF_A_RUN])


def test_what_is_rolled_back_is_not_told(trained, spans, api):
    body = {"dataset": DATASET, "record_ids": [trained.split()[0][0]]}
    assert api.post("/v1/forget-requests/preview", json=body).status_code == 200
    assert api.post("/v1/forget-requests", json=body).status_code == 202
    until(lambda: spans)
    assert names(spans) == ["forget request"]

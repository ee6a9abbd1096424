"""The process that sends spans: by OTLP, as standard variables say, without our secrets."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.runtime.settings import Settings
from app.runtime.tracing.handing import SOCKET_VARIABLE, hand_over, is_on
from app.runtime.tracing.sending import sending
from app.runtime.tracing.spans import Facts, Span, Step, Work, span_of_request
from tests.support.collector import Collector, assert_connected
from tests.support.command_lines import words_of
from tests.support.patience import until
from tests.support.receiver import status

ON = Settings(traces=True)


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


def _senders() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "app.runtime.tracing.sender" in words_of(p)]


def _sender() -> psutil.Process:
    (sender,) = until(_senders)
    return sender


def test_spans_arrive_as_they_were_handed_over(collector: Collector) -> None:
    with sending(ON):
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
    with sending(ON):
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


def test_the_sender_knows_no_setting_and_no_secret_and_leaves_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    monkeypatch.setenv("EXPUNGE_API_KEY", "sesame")
    with sending(ON):
        folder = Path(os.environ[SOCKET_VARIABLE]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        variables = _sender().environ()
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in variables
        ours = {name for name in variables if name.startswith("EXPUNGE")}
        assert ours == {"EXPUNGE_SUPERVISOR_PID"}
        assert "sesame" not in variables.values()
        with sending(ON):  # a process that another one of ours has started
            assert len(_senders()) == 1
    assert not is_on()
    assert not folder.exists()


def test_spans_wait_for_a_sender_that_was_killed(collector: Collector) -> None:
    with sending(ON):
        hand_over(lambda: _trace("fr_1"))
        collector.named("loading")
        _sender().send_signal(signal.SIGKILL)
        hand_over(lambda: _trace("fr_2"))
        collector.named("loading", 2)


def test_a_sender_whose_service_was_killed_sends_the_rest_and_goes(
    collector: Collector, tmp_path: Path
) -> None:
    child = os.fork()
    if child == 0:
        with sending(ON):
            (tmp_path / "path").write_text(os.environ[SOCKET_VARIABLE])
            _sender()
            hand_over(lambda: _trace("fr_1"))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    collector.named("loading")
    until(lambda: not Path((tmp_path / "path").read_text()).parent.exists())


def test_a_collector_that_takes_nothing_is_told_of_once(
    collector: Collector, capfd: pytest.CaptureFixture[str]
) -> None:
    collector.receiver.answers = [status(400), status(400), status(200)]
    with sending(ON):
        for number in range(3):
            hand_over(lambda number=number: _trace(f"fr_{number}"))  # type: ignore[misc]
            until(lambda number=number: len(collector.bodies()) > number)  # type: ignore[misc]
    told = capfd.readouterr().err
    assert told.count("spans are lost: the collector does not take them") == 1
    assert "400" not in told


def test_what_is_no_span_is_left_out(
    collector: Collector, capfd: pytest.CaptureFixture[str]
) -> None:
    with sending(ON):
        for wrong in (b"[]", b"{", b'{"name": "subject-17"}'):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(os.environ[SOCKET_VARIABLE])
                connection.sendall(wrong)
        hand_over(lambda: _trace("fr_1"))
        collector.named("loading")
    told = capfd.readouterr().err
    assert told.count("spans are lost") == 3
    assert "subject-17" not in told

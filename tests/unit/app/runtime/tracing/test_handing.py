"""Handing spans over: nothing happens without a sender, and nothing fails with one."""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from app.domain.errors import MissingExtraError
from app.runtime.settings import Settings
from app.runtime.tracing import handing
from app.runtime.tracing.sending import sending
from app.runtime.tracing.spans import Span, span_of_request
from tests.support.collector import handed_over
from tests.support.patience import until

SPAN = span_of_request("fr_1", begun_ns=1, state="accepted")


def _fail() -> NoReturn:
    raise RuntimeError("record-17")


def test_without_a_sender_nothing_is_made() -> None:
    assert not handing.is_on()
    handing.hand_over(_fail)
    handing.at_commit(None, _fail)  # type: ignore[arg-type] - it is not looked at


def test_what_fails_while_spans_are_made_is_logged_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with handed_over() as spans:
        handing.hand_over(_fail)
        handing.at_commit(None, _fail)  # type: ignore[arg-type] - nothing is left to hand over
        handing.hand_over(lambda: [SPAN])
        until(lambda: spans)
    assert [each.name for each in spans] == ["forget request"]
    assert len(caplog.messages) == 2
    assert all("RuntimeError" in each and "record-17" not in each for each in caplog.messages)


def test_a_sender_that_is_gone_or_stands_still_delays_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(handing.SOCKET_VARIABLE, str(tmp_path / "none"))
    handing.hand_over(lambda: [SPAN])
    assert "1 spans are lost" in caplog.text
    monkeypatch.setattr(handing, "_PATIENCE_S", 0.1)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setenv(handing.SOCKET_VARIABLE, f"{folder}/spans")
        listener.bind(f"{folder}/spans")
        listener.listen(0)  # and takes nothing
        for _ in range(4):
            handing.hand_over(lambda: [SPAN] * 2000)
    assert caplog.text.count("2000 spans are lost") == 4


def test_many_spans_are_handed_over_at_once() -> None:
    with handed_over() as spans:
        handing.hand_over(lambda: [SPAN] * 5000)
        until(lambda: len(spans) == 5000)


def test_a_span_ends_when_it_is_handed_over_unless_it_has_ended() -> None:
    ended = Span(name="a", place=SPAN.place, parent=None, begun_ns=1, ended_ns=2)
    with handed_over() as spans:
        handing.hand_over(lambda: [SPAN, ended])
        until(lambda: len(spans) == 2)
    assert spans[0].ended_ns is not None
    assert spans[0].ended_ns > 10**18
    assert spans[1] == ended


def test_without_the_extra_a_service_that_is_to_send_traces_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(MissingExtraError, match=r"expunge\[otel\]"), sending(Settings(traces=True)):
        pass
    with sending(Settings()):
        assert not handing.is_on()


@pytest.mark.slow  # it starts programs that import PyTorch
def test_processes_of_the_service_load_nothing_that_sends() -> None:
    """Redis' client imports the SDK's metrics where they are installed, and uses none."""
    code = (
        "import sys, app.cli.application, app.cli.commands.service, workers.worker;"
        "import workers.dispatcher;"
        "sending = ('opentelemetry.sdk.trace', 'opentelemetry.exporter', 'opentelemetry.proto');"
        "print([name for name in sys.modules if name.startswith(sending)])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"

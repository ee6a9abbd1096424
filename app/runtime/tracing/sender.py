"""``python -m app.runtime.tracing.sender SOCKET``: sends the spans that come in by OTLP over HTTP.

Standard ``OTEL_…`` variables say where to, how many and under which name. It knows only the spans
that it is given, no setting and no key. It is asked to stop after all processes that have spans.
"""

import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace import TraceFlags as Flags

from app.runtime import logs
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import StopSignal
from app.runtime.processes.supervisor import stop_with_supervisor
from app.runtime.tracing.spans import Place, Span, Step

_LOOK_INTERVAL_S: Final = 0.25
_READ_S: Final = 5.0
_PREFIX: Final = "expunge."
_KINDS: Final[Mapping[str, SpanKind]] = {
    Step.REQUEST: SpanKind.SERVER,
    Step.CALLBACK: SpanKind.CLIENT,
    Step.PUBLISH: SpanKind.CLIENT,
}
_log = logging.getLogger("expunge.tracing")


class Sender:
    """Turns spans into OpenTelemetry's and gives them to a provider's processors."""

    def __init__(self, exporter: SpanExporter) -> None:
        ours = {"service.name": "expunge", "service.version": version("expunge")}
        named = OTELResourceDetector().detect().attributes
        self._ids = _Ids()
        self._provider = TracerProvider(
            id_generator=self._ids,
            resource=Resource.create({**ours, **named}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Noting(exporter)))
        self._tracer = self._provider.get_tracer("expunge", version("expunge"))

    def take(self, span: Span) -> None:
        """Send a span soon, unless the sampler leaves its trace out."""
        self._ids.next = span.place
        # All spans of a trace are sent, or none: the sampler decides by the trace's id.
        decided = self._provider.sampler.should_sample(None, int(span.place.trace, 16), span.name)
        is_sampled = decided.decision is Decision.RECORD_AND_SAMPLE
        flags = Flags(Flags.SAMPLED if is_sampled else Flags.DEFAULT)
        above = None
        if span.parent is not None:
            parent = _context(Place(span.place.trace, span.parent), flags)
            above = trace.set_span_in_context(NonRecordingSpan(parent))
        facts = {name: each for name, each in vars(span.facts).items() if each is not None}
        started = self._tracer.start_span(
            span.name,
            above,
            _KINDS.get(span.name, SpanKind.INTERNAL),
            {_PREFIX + name: each for name, each in facts.items()} | {"process.pid": span.pid},
            [Link(_context(each, flags)) for each in span.links],
            start_time=span.begun_ns,
        )
        if span.error is not None:
            started.set_attribute("error.type", span.error)
            started.set_status(Status(StatusCode.ERROR))
        started.end(max(span.begun_ns, span.ended_ns or 0))

    def close(self) -> None:
        """Send what is left, in the time that the variables allow."""
        self._provider.shutdown()


class _Ids(IdGenerator):
    """Gives each span the ids that it has already."""

    next: Place

    def generate_span_id(self) -> int:
        return int(self.next.span, 16)

    def generate_trace_id(self) -> int:
        return int(self.next.trace, 16)


class _Noting(SpanExporter):
    """Says once that spans do not arrive; the exporter's own lines may quote what it was told."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            _log.warning("spans are lost: the collector does not take them")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _context(place: Place, flags: Flags) -> SpanContext:
    return SpanContext(int(place.trace, 16), int(place.span, 16), is_remote=True, trace_flags=flags)


def receive(listener: socket.socket, stop: StopSignal, sender: Sender) -> None:
    """Take spans until this process is asked to stop, and then those that wait already."""
    while True:
        stopping = stop.is_set()
        listener.settimeout(0.0 if stopping else _LOOK_INTERVAL_S)
        try:
            connection, _ = listener.accept()
        except (TimeoutError, BlockingIOError):
            if stopping:
                return
            continue
        connection.settimeout(_READ_S)
        try:
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    sender.take(Span.from_json(line))
        except Exception as error:  # noqa: BLE001 - the next ones may be right
            _log.warning("spans are lost: %s", logs.describe(error))


def main() -> None:
    """Serve the socket whose number is the only argument."""
    harden()
    if len(sys.argv) != 2:
        sys.exit("usage: python -m app.runtime.tracing.sender SOCKET")
    logs.configure()
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    stop = StopSignal().listen()
    stop_with_supervisor()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        sender = Sender(OTLPSpanExporter())
        receive(listener, stop, sender)
        sender.close()
        path = Path(listener.getsockname())
        with suppress(OSError):  # unless the process that made it has removed it
            path.unlink()
            path.parent.rmdir()


if __name__ == "__main__":
    main()

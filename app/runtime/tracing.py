"""Sends spans by OTLP over HTTP: where to, how many and under which name say ``OTEL_…`` variables.

It comes with the extra ``otel`` and is loaded with the first span that a process sends.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
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

from app.runtime.spans import Place, Span, Step

_PREFIX: Final = "expunge."
_KINDS: Final[Mapping[str, SpanKind]] = {
    Step.REQUEST: SpanKind.SERVER,
    Step.CALLBACK: SpanKind.CLIENT,
    Step.PUBLISH: SpanKind.CLIENT,
}
_log = logging.getLogger("expunge.tracing")


class Sender:
    """Gives spans to OpenTelemetry's batch processor, whose thread sends them."""

    def __init__(self) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it quotes what it was told
        ours = {"service.name": "expunge", "service.version": version("expunge")}
        named = OTELResourceDetector().detect().attributes
        self._ids = _Ids()
        self._provider = TracerProvider(
            id_generator=self._ids,
            resource=Resource.create({**ours, **named}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Noting(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("expunge", version("expunge"))

    def send(self, span: Span) -> None:
        """Send a span soon, unless the sampler leaves its trace out."""
        # All spans of a trace are sent, or none: the sampler decides by the trace's id.
        decided = self._provider.sampler.should_sample(None, int(span.place.trace, 16), span.name)
        is_sampled = decided.decision is Decision.RECORD_AND_SAMPLE
        flags = Flags(Flags.SAMPLED if is_sampled else Flags.DEFAULT)
        above = None
        if span.parent is not None:
            parent = _context(Place(span.place.trace, span.parent), flags)
            above = trace.set_span_in_context(NonRecordingSpan(parent))
        said = {name: each for name, each in vars(span.facts).items() if each is not None}
        facts = {_PREFIX + name: each for name, each in said.items()}
        self._ids.next = span.place
        started = self._tracer.start_span(
            span.name,
            above,
            _KINDS.get(span.name, SpanKind.INTERNAL),
            facts | {"process.pid": os.getpid()},
            [Link(_context(each, flags)) for each in span.links],
            start_time=span.begun_ns,
        )
        if span.error is not None:
            started.set_attribute("error.type", span.error)
            started.set_status(Status(StatusCode.ERROR))
        started.end(max(span.begun_ns, span.ended_ns or 0))

    def close(self) -> None:
        """Send what is left, in the time that the variables allow, and end the thread."""
        self._provider.shutdown()


class _Ids(IdGenerator):
    """Gives each span the ids that it has already."""

    next: Place

    def generate_span_id(self) -> int:
        return int(self.next.span, 16)

    def generate_trace_id(self) -> int:
        return int(self.next.trace, 16)


class _Noting(SpanExporter):
    """Says once that spans do not arrive."""

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

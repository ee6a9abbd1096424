"""Where spans arrive: a collector of OpenTelemetry, or a list in the process that makes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.runtime import spans
from app.runtime.spans import Span
from tests.support.patience import until
from tests.support.receiver import Receiver


@dataclass(frozen=True)
class Seen:
    """A span as a collector sees it; ids in hexadecimal, ``error`` says whether it failed."""

    name: str
    trace: str
    span: str
    parent: str
    begun_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    error: bool
    kind: int
    resource: dict[str, Any]


class Collector:
    """A real HTTP server that keeps what is sent to it."""

    def __init__(self) -> None:
        self.receiver = Receiver()

    def __enter__(self) -> Self:
        self.receiver.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        self.receiver.__exit__(*about)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a service that sends its traces here, soon."""
        return {
            "EXPUNGE_TRACES": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.receiver.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def bodies(self) -> list[bytes]:
        """Return every body that came in."""
        return [each.body for each in list(self.receiver.received)]

    def spans(self) -> list[Seen]:
        """Return every span that came in."""
        return [seen for body in self.bodies() for seen in _seen(body)]

    def named(self, name: str, count: int = 1) -> list[Seen]:
        """Return the spans of a name, once there are so many."""
        return until(lambda: len(f := [s for s in self.spans() if s.name == name]) >= count and f)


def _seen(body: bytes) -> Iterator[Seen]:
    for part in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(part.resource.attributes)
        for span in (each for scope in part.scope_spans for each in scope.spans):
            yield Seen(
                name=span.name,
                trace=span.trace_id.hex(),
                span=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                begun_ns=span.start_time_unix_nano,
                ended_ns=span.end_time_unix_nano,
                attributes=_values(span.attributes),
                links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                error=span.status.code == 2,
                kind=span.kind,
                resource=resource,
            )


def _values(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


class _Kept(list[Span]):
    send = list.append

    def close(self) -> None:
        """Have nothing left to send."""


@contextmanager
def sending() -> Iterator[None]:
    """Send the spans of this process as ``OTEL_…`` variables say."""
    from app.runtime.tracing import Sender  # an optional part

    spans.send_by(Sender)
    try:
        yield
    finally:
        spans.send_by(None)


@contextmanager
def handed_over() -> Iterator[list[Span]]:
    """Keep the spans of this process instead of sending them."""
    kept = _Kept()
    spans.send_by(lambda: kept)
    try:
        yield kept
    finally:
        spans.send_by(None)


def assert_connected(connected: list[Span] | list[Seen]) -> None:
    """Check that each trace has one span without a parent, and that all others are below it."""
    placed = [_placed(each) for each in connected]
    ids = {(trace, span) for trace, span, _ in placed}
    assert len(ids) == len(placed), "an id is used twice"
    for wanted in {trace for trace, _, _ in placed}:
        roots = [span for trace, span, parent in placed if trace == wanted and not parent]
        assert len(roots) == 1, [each for each in connected if _placed(each)[0] == wanted]
    for trace, _, parent in placed:
        assert not parent or (trace, parent) in ids, (trace, parent)


def _placed(span: Span | Seen) -> tuple[str, str, str]:
    if isinstance(span, Seen):
        return span.trace, span.span, span.parent
    return span.place.trace, span.place.span, span.parent or ""

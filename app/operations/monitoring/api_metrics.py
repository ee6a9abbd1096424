"""Request counts, outcomes and durations per route in this process.

Labels are route templates, never paths: paths contain ids and names.
"""

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ApiMetrics:
    """The metrics of one API process, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._durations = Histogram(
            "expunge_http_request_duration_seconds",
            "Time from a request's first line to the end of its answer, by route template.",
            ("method", "route", "status"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )

    def observe(self, *, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request; ``route`` is a template."""
        self._durations.labels(method, route, str(status)).observe(duration_s)

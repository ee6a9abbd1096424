"""Gauges from the rows of a query."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily


def gauge(
    name: str, meaning: str, *labels: str, rows: Iterable[Sequence[Any]]
) -> GaugeMetricFamily:
    """Return a gauge; rows are the labels' values, then the number, and left out without one."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for *values, number in rows:
        if number is not None:
            family.add_metric(values, number)
    return family


def number(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge without labels; it is absent where there is no number."""
    return gauge(name, meaning, rows=[(value,)])

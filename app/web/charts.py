"""Charts without scripts, drawn as SVG by ``parts.html`` from the places that are worked out here.

Across, a place is a share of the width in percent; down, it is in pixels. So a chart is as wide as
its page, and its texts are as large on a telephone as on a desk. Each has its numbers in its
description and as a table beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TOP, _BOTTOM = 14.0, 170.0
_TICKS = 4
_MOST_LEVELS = 7
_MOST_NAMES = 6
_LONGEST_NAME = 16
_LETTER, _NARROWEST = 6.5, 230.0
"""In pixels: a letter of a name, and how wide a chart is on a small telephone."""
_LARGE = 100.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart: its points, its class in the style sheet, and whether it has dots."""

    points: Sequence[Point]
    kind: str = "reported"
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Where everything in a chart is.

    Attributes:
        label: what it shows, in words.
        ticks: heights, with the number that each stands for.
        names: where on the way across the names are, and whether a telephone has room for each.
        lines: its lines, the last one on top.
    """

    label: str
    ticks: Sequence[tuple[float, str]]
    names: Sequence[tuple[float, str, bool]]
    lines: Sequence[Line]


def by_name(names: Sequence[str], values: Sequence[float | None], *, title: str) -> Chart | None:
    """Return a chart of a number for each name, from 0 up; None where there is no number."""
    found = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    if not found:
        return None
    most = max(value for _, value in found)
    top = _round_up(most)
    across = [100 / len(names) * (i + 0.5) for i in range(len(names))]
    points = [
        (x, _y(value / top)) for x, value in zip(across, values, strict=True) if value is not None
    ]
    return Chart(
        label=f"{title}. at most {most:.4g}, {found[-1][1]:.4g} at {found[-1][0]}.",
        ticks=[(_y(tick / _TICKS), _spelt(top * tick / _TICKS)) for tick in range(_TICKS + 1)],
        names=_placed(across, names),
        lines=[Line(points, dots=True)],
    )


def epsilon_curve(
    planned: Sequence[Point], reported: Sequence[Point], *, target: float, steps: int
) -> Chart | None:
    """Return a chart of ε on a logarithmic scale against steps; None without a point.

    ``planned`` and ``reported`` are of steps and ε; points whose ε is 0 are left out.
    """
    drawn = [[(step, e) for step, e in points if e > 0] for points in (planned, reported)]
    if not any(drawn):
        return None
    logs = [math.log10(e) for e in (target, *(e for points in drawn for _, e in points))]
    low = min(logs) - 0.15
    high = max(*logs, low + 0.8) + 0.05
    steps = max(steps, *(round(step) for points in drawn for step, _ in points))

    def place(step: float, epsilon: float) -> Point:
        return 100 * step / steps, _y((math.log10(epsilon) - low) / (high - low))

    known, said = (Line([place(*point) for point in points]) for points in drawn)
    state = "No step has been reported yet"
    if drawn[1]:
        step, epsilon = drawn[1][-1]
        state = f"After {step:.0f} of {steps} steps ε is {epsilon:.4g}"
    marks = sorted({round(part * steps / 4) for part in range(5)})
    return Chart(
        label=f"{state}; the target is {target:.4g}.",
        ticks=[(place(0, level)[1], f"{level:g}") for level in _levels(low, high)],
        names=[(100 * mark / steps, str(mark), True) for mark in marks],
        lines=[
            Line(known.points, "planned"),
            Line([place(0, target), place(steps, target)], "target"),
            Line(said.points, dots=True),
        ],
    )


def _levels(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each power of ten, or fewer where these are too many."""
    inside: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        powers = range(math.floor(low), math.ceil(high))
        levels = [float(f"{digit}e{power}") for power in powers for digit in digits]
        inside = [level for level in levels if low <= math.log10(level) <= high]
        if len(inside) <= _MOST_LEVELS:
            return inside
    return inside[:: -(-len(inside) // _MOST_LEVELS)]


def _placed(across: Sequence[float], names: Sequence[str]) -> list[tuple[float, str, bool]]:
    every = -(-len(names) // _MOST_NAMES)
    shown = [
        (x, name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")
        for x, name in zip(across[::every], names[::every], strict=True)
    ]
    widest = _LETTER * max(len(name) for _, name in shown)
    every = math.ceil(widest * len(shown) / _NARROWEST)
    return [(x, name, i % every == 0) for i, (x, name) in enumerate(shown)]


def _spelt(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _y(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((m * power for m in (1, 2, 4, 5, 8) if m * power >= value), 10 * power)

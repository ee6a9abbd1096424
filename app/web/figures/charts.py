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
_MOST_NAMES = 6
_LONGEST_NAME = 16
_LETTER, _NARROWEST = 6.5, 230.0
"""In pixels: a letter of a name, and how wide a chart is on a small telephone."""
_LARGE = 100.0


@dataclass(frozen=True)
class Series:
    """A line of a chart, with None where a number is missing."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """Where everything in a chart is.

    Attributes:
        label: what it shows, in words.
        ticks: heights, with the number that each stands for.
        names: where on the way across the names are, and whether a telephone has room for each.
        series: of each series its points.
        slot: of bars, how much of the way across each has; None draws lines.
        bottom: the height of 0.
    """

    label: str
    ticks: Sequence[tuple[float, str]]
    names: Sequence[tuple[float, str, bool]]
    series: Sequence[Sequence[tuple[float, float]]]
    slot: float | None
    bottom: float = _BOTTOM


def bars(points: Sequence[tuple[str, float]], *, title: str, unit: str = "") -> Chart | None:
    """Return a chart of one number for each name; None where all are 0."""
    values = [value for _, value in points]
    if not any(values):
        return None
    return _chart([name for name, _ in points], [Series("", values)], title, unit, as_bars=True)


def lines(
    names: Sequence[str], series: Sequence[Series], *, title: str, unit: str = ""
) -> Chart | None:
    """Return a chart with a line for each series; None where none has a number."""
    if all(value is None for each in series for value in each.values):
        return None
    return _chart(names, series, title, unit, as_bars=False)


def _chart(
    names: Sequence[str], series: Sequence[Series], title: str, unit: str, *, as_bars: bool
) -> Chart:
    top = _round_up(max(v for each in series for v in each.values if v is not None))
    heights = [top * tick / _TICKS for tick in range(_TICKS + 1)]
    slot = 100 / len(names)
    across = [slot * (i + 0.5) for i in range(len(names))]
    return Chart(
        label=f"{title}. {'; '.join(_described(names, each, unit) for each in series)}.",
        ticks=[(_y(value, top), f"{_spelt(value)}{unit}") for value in heights],
        names=_placed(across, names),
        series=[
            [
                (x, _y(value, top))
                for x, value in zip(across, each.values, strict=True)
                if value is not None
            ]
            for each in series
        ],
        slot=slot if as_bars else None,
    )


def _placed(across: Sequence[float], names: Sequence[str]) -> list[tuple[float, str, bool]]:
    every = -(-len(names) // _MOST_NAMES)
    shown = [
        (x, name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")
        for x, name in zip(across[::every], names[::every], strict=True)
    ]
    widest = _LETTER * max(len(name) for _, name in shown)
    every = math.ceil(widest * len(shown) / _NARROWEST)
    return [(x, name, i % every == 0) for i, (x, name) in enumerate(shown)]


def _described(names: Sequence[str], series: Series, unit: str) -> str:
    found = [(n, v) for n, v in zip(names, series.values, strict=True) if v is not None]
    what = f"{series.name}: " if series.name else ""
    if not found:
        return f"{what}no number"
    name, value = found[-1]
    most = max(v for _, v in found)
    return f"{what}at most {most:.4g}{unit}, {value:.4g}{unit} at {name}"


def _spelt(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _y(value: float, top: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / top


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((m * power for m in (1, 2, 4, 5, 8) if m * power >= value), 10 * power)

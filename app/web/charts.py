"""Charts as SVG, drawn on the server: they need neither scripts nor styles of their own.

Each has its numbers in its description and as a table beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

_WIDTH = 640.0
_HEIGHT = 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 12.0, 14.0, 30.0
_TICKS = 4
_MOST_NAMES = 6
_LARGE = 100.0


@dataclass(frozen=True)
class Series:
    """A line of a chart, with None where a number is missing."""

    name: str
    values: Sequence[float | None]


def bars(points: Sequence[tuple[str, float]], *, title: str, unit: str = "") -> Markup | None:
    """Return a chart of one number for each name; None where all are 0."""
    return _chart([name for name, _ in points], [Series("", [v for _, v in points])], title, unit)


def lines(
    names: Sequence[str], series: Sequence[Series], *, title: str, unit: str = ""
) -> Markup | None:
    """Return a chart with a line for each series; None where none has a number."""
    return _chart(names, series, title, unit, drawn_as="line")


def _chart(
    names: Sequence[str],
    series: Sequence[Series],
    title: str,
    unit: str,
    drawn_as: str = "bar",
) -> Markup | None:
    known = [value for each in series for value in each.values if value is not None]
    if not any(known) and (drawn_as == "bar" or not known):
        return None
    top = _round_up(max(known))
    draw = _bars if drawn_as == "bar" else _line
    drawn = Markup("").join(draw(each.values, top, kind) for kind, each in enumerate(series))
    return Markup(
        '<svg viewBox="0 0 {w:.0f} {h:.0f}" role="img" aria-label="{label}">{axes}{drawn}</svg>'
    ).format(
        w=_WIDTH,
        h=_HEIGHT,
        label=_described(names, series, title, unit),
        axes=_axes(names, top, unit),
        drawn=drawn,
    )


def _bars(values: Sequence[float | None], top: float, _kind: int) -> Markup:
    slot = _across() / max(1, len(values))
    return Markup("").join(
        Markup('<rect class="bar0" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            _LEFT + slot * (i + 0.15), _y(value, top), 0.7 * slot, _y(0.0, top) - _y(value, top)
        )
        for i, value in enumerate(values)
        if value
    )


def _line(values: Sequence[float | None], top: float, kind: int) -> Markup:
    slot = _across() / max(1, len(values))
    points = [
        (_LEFT + slot * (i + 0.5), _y(value, top))
        for i, value in enumerate(values)
        if value is not None
    ]
    path = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    dots = Markup("").join(
        Markup('<circle class="dot{}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(kind, x, y)
        for x, y in points
    )
    return Markup('<path class="line{}" d="{}"/>').format(kind, path) + dots


def _axes(names: Sequence[str], top: float, unit: str) -> Markup:
    drawn = Markup("")
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = _y(value, top)
        drawn += Markup(
            '<line class="grid" x1="{:.0f}" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}"/>'
            '<text x="{:.0f}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(_LEFT, _WIDTH - _RIGHT, y, y, _LEFT - 6, y + 4, f"{_spelt(value)}{unit}")
    every = -(-len(names) // _MOST_NAMES) or 1
    slot = _across() / max(1, len(names))
    for i, name in enumerate(names):
        if i % every == 0:
            drawn += Markup('<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{}</text>').format(
                _LEFT + slot * (i + 0.5), _HEIGHT - 10, name
            )
    return drawn


def _described(names: Sequence[str], series: Sequence[Series], title: str, unit: str) -> str:
    said = []
    for each in series:
        found = [(n, v) for n, v in zip(names, each.values, strict=True) if v is not None]
        if found:
            name, value = found[-1]
            most = max(v for _, v in found)
            what = f"{each.name}: " if each.name else ""
            said.append(f"{what}at most {most:.4g}{unit}, {value:.4g}{unit} at {name}")
    return f"{title}. {'; '.join(said)}."


def _spelt(value: float) -> str:
    return f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _across() -> float:
    return _WIDTH - _LEFT - _RIGHT


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 1.0
    while value < power:
        power /= 10
    return next((m * power for m in (1, 2, 4, 5, 8) if m * power >= value), 10 * power)

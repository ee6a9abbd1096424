"""Templates, and the formatting of times, sizes and numbers."""

import re
from datetime import UTC, datetime, timedelta

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from app.registry.card import IN_WORDS
from app.web.access import Visitor

_DAY_S = 86_400
_UNITS = ((_DAY_S, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_EMPHASIS = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")
_DASH = "–"


def render(
    template: str, visitor: Visitor | None, *, status: int = 200, **context: object
) -> HTMLResponse:
    """Render a page. Template variables are escaped."""
    page = _TEMPLATES.get_template(template)
    return HTMLResponse(page.render(visitor=visitor, now=datetime.now(UTC), **context), status)


def moment(when: datetime | None) -> Markup | str:
    """Format a time in UTC, also machine-readable."""
    if when is None:
        return _DASH
    utc = when.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), utc.strftime("%d %b %Y %H:%M").lstrip("0") + " UTC"
    )


def span(duration: timedelta) -> str:
    """Format a duration in its largest unit: ``3 days``."""
    seconds = abs(duration.total_seconds())
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "0 seconds"


def since(when: datetime | None, now: datetime) -> str:
    """Format how long ago a time was."""
    return "never" if when is None else f"{span(now - when)} ago"


def due(when: datetime, now: datetime) -> str:
    """Format the time until a deadline."""
    return f"{span(now - when)} overdue" if when < now else f"in {span(when - now)}"


def number(value: float | None) -> str:
    """Format a number with four digits."""
    return _DASH if value is None else f"{value:.4g}"


def count(value: float) -> str:
    """Format a large number with its thousands apart."""
    return f"{value:,.0f}"


def size(size_bytes: int) -> str:
    """Format a size in bytes in its largest unit."""
    amount = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def words(name: str | None) -> str:
    """Format an identifier as words: ``fine_tuning``."""
    return _DASH if name is None else name.replace("_", " ")


def short(name: str) -> str:
    """Shorten an id or digest for a table; its own page shows it in full."""
    prefix, separator, rest = name.rpartition("_")
    return f"{prefix}{separator}{rest[:8]}"


def emphasised(text: str) -> Markup:
    """Convert ``**strong**`` and `` `code` `` in the service's own sentences to markup."""
    line = " ".join(text.replace("``", "`").split())
    return Markup(  # noqa: S704 - the text is escaped first
        _EMPHASIS.sub(
            lambda found: (
                f"<strong>{found[1]}</strong>" if found[1] else f"<code>{found[2]}</code>"
            ),
            str(escape(line)),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("app.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= IN_WORDS
    for spelling in (moment, since, due, number, count, size, words, short, emphasised):
        environment.filters[spelling.__name__] = spelling
    return environment


_TEMPLATES = _environment()

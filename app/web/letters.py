"""The languages of the letter to a person: gettext catalogues, and which one is asked for.

Its template is English. Each catalogue is a file ``LANGUAGE.po``, here or in the data directory's
``languages``, where an operator adds some or replaces ours.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import Final

from babel import Locale, localedata, negotiate_locale
from babel.dates import format_date, format_time
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from markupsafe import Markup

ENGLISH: Final = "en"
SHIPPED: Final = Path(__file__).with_name("languages")
_PREFERRED = re.compile(r"([A-Za-z]{1,8}(?:-[A-Za-z0-9]{1,8})*)(?:\s*;\s*q=([01](?:\.\d{0,3})?))?")


def catalogues(data_dir: Path) -> dict[str, Path]:
    """Return the files of all languages but English, by their codes; an operator's own first."""
    folders = (SHIPPED, data_dir / "languages")
    paths = [path for folder in folders for path in folder.glob("*.po")]
    found = {path.stem: path for path in paths if localedata.exists(path.stem)}
    return dict(sorted(found.items()))


def language_of(asked: str | None, accepted: str | None, known: Mapping[str, Path]) -> str:
    """Return the language that is asked for, else the best of ``Accept-Language``, or English."""
    ours = (ENGLISH, *known)
    if asked in ours:
        return str(asked)
    wanted = sorted(_PREFERRED.findall(accepted or ""), key=lambda each: -float(each[1] or 1))
    codes = [code for code, quality in wanted if float(quality or 1) > 0]
    return negotiate_locale(codes, ours, sep="-") or ENGLISH


def named(known: Mapping[str, Path]) -> Iterator[tuple[str, str]]:
    """Yield each language's code, and its name in itself."""
    for code in (ENGLISH, *known):
        yield code, Locale.parse(code).get_display_name() or code


def texts(language: str, known: Mapping[str, Path]) -> NullTranslations:
    """Return a language's sentences, by those of the template."""
    path = known.get(language)
    return NullTranslations() if path is None else _read(path, path.stat().st_mtime_ns)


def moment_in(when: datetime, language: str) -> Markup:
    """Format a time in UTC as a language writes it, also machine-readable."""
    utc = when.astimezone(UTC)
    locale = "en_GB" if language == ENGLISH else language
    day, time = format_date(utc, "long", locale), format_time(utc, "HH:mm", locale=locale)
    written = Markup('<time datetime="{}">{}, {} UTC</time>')
    return written.format(utc.isoformat(timespec="seconds"), day, time)


@cache
def _read(path: Path, _changed_ns: int) -> GNUTranslations:
    compiled = BytesIO()
    with path.open("rb") as file:
        write_mo(compiled, read_po(file, locale=path.stem))
    compiled.seek(0)
    return GNUTranslations(compiled)

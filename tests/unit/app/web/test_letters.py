"""The letter to a person: every language says every sentence, with what belongs in it."""

import re
from collections import Counter
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from jinja2.ext import babel_extract

from app.web import letters, pages

LANGUAGES = ("de", "es", "fr")
_PLACEHOLDER = re.compile(r"%\(\w+\)s|%")


def _catalogue(language: str) -> Catalog:
    with (letters.SHIPPED / f"{language}.po").open("rb") as file:
        return read_po(file, locale=language)


def _sentences() -> set[str | tuple[str, ...]]:
    """Return what the template says; of a sentence with a number, both forms."""
    template = letters.SHIPPED.with_name("templates") / "requests" / "letter.html"
    options = {"trim_blocks": "true", "lstrip_blocks": "true"}
    with template.open("rb") as file:
        found = [each[2] for each in babel_extract(file, ("_", "gettext", "ngettext"), [], options)]
    grounds = pages._TEMPLATES.get_template("parts.html").module.GROUNDS  # type: ignore[attr-defined]
    said = (tuple(filter(None, each)) if isinstance(each, tuple) else each for each in found)
    return {*filter(None, said), *grounds.values()}


def test_these_languages_are_there() -> None:
    known = letters.catalogues(Path("nowhere"))
    assert tuple(known) == LANGUAGES
    assert dict(letters.named(known)) == {
        "en": "English",
        "de": "Deutsch",
        "es": "español",
        "fr": "français",
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_is_translated_and_no_other_one(language: str) -> None:
    messages = {message.id: message for message in _catalogue(language) if message.id}
    assert set(messages) == _sentences()
    for message in messages.values():
        forms = [message.string] if isinstance(message.string, str) else list(message.string)
        assert all(forms), message.id
        assert not message.fuzzy
        assert not message.check(_catalogue(language))


@pytest.mark.parametrize("language", LANGUAGES)
def test_placeholders_agree(language: str) -> None:
    for message in _catalogue(language):
        if isinstance(message.id, str):
            pairs = [(message.id, message.string)] if message.id else []
        else:
            pairs = list(zip(message.id, message.string, strict=True))
        for said, translated in pairs:
            found = [Counter(_PLACEHOLDER.findall(str(text))) for text in (said, translated)]
            assert found[0] == found[1], said


@pytest.mark.parametrize(
    ("asked", "accepted", "language"),
    [
        (None, None, "en"),
        ("fr", "de", "fr"),
        ("../fr", "de-AT,en;q=0.5", "de"),
        (None, "en;q=0.4, es-MX;q=0.9", "es"),
        (None, "fr;q=0, nl", "en"),
        (None, "en-GB,en;q=0.9,de;q=0.8", "en"),
        (None, ";;q=x,\x00", "en"),
    ],
)
def test_the_language_asked_for_wins_over_the_browsers(
    asked: str | None, accepted: str | None, language: str
) -> None:
    known = letters.catalogues(Path("nowhere"))
    assert letters.language_of(asked, accepted, known) == language


def test_operators_add_languages_and_replace_ours(tmp_path: Path) -> None:
    folder = tmp_path / "languages"
    folder.mkdir()
    text = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    for name, said in (("pt", "Recebida"), ("de", "Da"), ("nonsense", "x")):
        (folder / f"{name}.po").write_text(f'{text}msgid "Received"\nmsgstr "{said}"\n')
    known = letters.catalogues(tmp_path)
    assert list(known) == ["de", "es", "fr", "pt"]
    said = [letters.texts(code, known).gettext("Received") for code in ("de", "pt", "en", "xx")]
    assert said == ["Da", "Recebida", "Received", "Received"]

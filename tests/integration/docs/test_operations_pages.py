"""The pages for operators name what there is: figures, settings, commands, files."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from app.cli.main import app as command_line
from app.runtime.settings import Settings
from tests.integration.docs.test_monitoring import exported  # noqa: F401 - a fixture

REPOSITORY = Path(__file__).parents[3]
OPERATIONS = REPOSITORY / "docs" / "operations"
PAGES = sorted(OPERATIONS.glob("*.md"))
SETTINGS = (REPOSITORY / "docs" / "settings.md").read_text()
_SUFFIXES = ("_bucket", "_count", "_sum", "_gcount", "_gsum", "_created")


def _commands(page: Path) -> list[list[str]]:
    """Return the words of every ``expunge`` command on a page, in fences and in text."""
    text = page.read_text()
    fenced = re.findall(r"^\s*expunge [^\n>]*", text, flags=re.MULTILINE)
    quoted = re.findall(r"`(expunge [^`]*)`", text)
    return [line.split()[1:] for line in (*fenced, *quoted)]


def _option_names(command: Any) -> set[str]:
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page: Path) -> None:
    assert _commands(page)
    for words in _commands(page):
        command: Any = typer.main.get_command(command_line)
        rest = list(words)
        while rest and hasattr(command, "list_commands"):
            command = command.get_command(typer.Context(command), rest.pop(0))
        options = {word for word in rest if word.startswith("--")}
        assert options <= _option_names(command), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_figure_is_explained(exported: dict[str, set[str]]) -> None:  # noqa: F811
    lines = (OPERATIONS / "README.md").read_text().splitlines()
    page = "".join(line for line in lines if line.startswith("| `expunge_"))
    for name, labels in exported.items():
        family = name
        for suffix in _SUFFIXES:
            family = family.removesuffix(suffix)
        if not family.startswith("expunge_"):
            continue
        (told,) = set(re.findall(rf"`{family}(\{{[^`]*\}})?`", page)) or {None}
        assert told is not None, family
        assert set(told.strip("{}").split(",")) - {""} == labels - {"le"}, family


def test_every_setting_is_explained() -> None:
    everywhere = "".join(page.read_text() for page in (REPOSITORY / "docs").rglob("*.md"))
    pages = SETTINGS + "".join(page.read_text() for page in PAGES)
    abbreviated = {"s3_endpoint", "s3_region", "s3_prefix", "s3_access_key", "s3_secret_key"}
    known_elsewhere = {"environment", "poll_interval_s"}
    for name in set(Settings.model_fields) - abbreviated - known_elsewhere:
        assert f"EXPUNGE_{name.upper()}" in everywhere, name
    others = {"BENCH_DATA", "SECRETS_DIR"}
    for name in set(re.findall(r"EXPUNGE_([A-Z0-9_]+)(?![A-Z0-9_…])", pages)) - others:
        assert name.lower() in Settings.model_fields, name

"""Every name in the documents exists: commands, options, settings, paths, files, problems."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.protocol.problem_types import PROBLEM_TYPES
from app.runtime.environment import unknown_names
from app.runtime.settings import Settings
from tests.support import definitions_page, settings_page
from tests.unit.app.cli.test_help import ALL, LEAVES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
COMMAND = re.compile(r"(?<![\w./-])expunge ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)([^\n|;&`#'()$>]*)")
PATH = re.compile(r"/(?:v1|opendsr|\.well-known)/[^\s`\"')>\]|,]*")
FILE = re.compile(
    r"(?<![\w./-])(?:app|workers|migrations|benchmarks|examples|tests|deploy)/[\w./*-]+"
)
PROBLEM = re.compile(r"urn:expunge:problem:([a-z-]+)|\b[45]\d\d `([a-z]+(?:-[a-z]+)+)`")
ROUTES = re.findall(r"^### `[A-Z]+ (\S+)`$", (ROOT / "docs/api.md").read_text(), re.M)
NOT_A_COMMAND = "data key"  # a label in a ciphertext
NOT_OURS = {"/.well-known/openid-configuration"}
NOT_THERE = {"app/planning/mechanisms/noise_once.py", "workers/mechanisms/noise_once.py"}
"""What somebody adds who follows docs/development.md."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

documents = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def _code(path: Path) -> Iterator[str]:
    for found in CODE.finditer(path.read_text()):
        yield found[0].replace("\\\n", " ").strip("`")


@documents
def test_commands_and_their_options(path: Path) -> None:
    for code in _code(path):
        for words, rest in COMMAND.findall(code):
            if words == NOT_A_COMMAND:
                continue
            first = words.split()[0]
            assert first in ALL, f"expunge {words}"
            name = words if words in ALL else first
            if name not in LEAVES:
                assert words == first, f"expunge {words}"  # it speaks of all its commands
                continue
            known = {option for p in LEAVES[name].params for option in p.opts + p.secondary_opts}
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
                assert option in known | {"--help"}, f"expunge {words} {option}"


@documents
def test_settings(path: Path) -> None:
    text = path.read_text()
    names = set(re.findall(r"\bEXPUNGE_[A-Z0-9_]+\b(?!…)", text))
    examples = {"EXPUNGE_"} | {name for name in names if f"`{name}…`" in text}
    assert list(unknown_names(names - examples, Settings.model_fields)) == []


@documents
def test_paths_of_the_api(path: Path) -> None:
    patterns = [re.compile(re.sub(r"\\{[^/]*\\}", "[^/]+", re.escape(route))) for route in ROUTES]
    for code in _code(path):
        for found in set(PATH.findall(code)) - NOT_OURS:
            called = re.sub(r"[?#].*", "", found).rstrip("./…")
            prefix = any(route.startswith(f"{called}/") for route in ROUTES)
            assert prefix or any(pattern.fullmatch(called) for pattern in patterns), found


@documents
def test_files_and_targets(path: Path) -> None:
    for code in _code(path):
        for name in set(FILE.findall(code)) - NOT_THERE:
            module = name.rstrip("./")
            assert list(ROOT.glob(module)) or (ROOT / f"{module}.py").exists(), name
        for target in re.findall(r"(?m)^\s*make ([a-z-]+)", code):
            assert target in TARGETS, target


@documents
def test_problems(path: Path) -> None:
    for urn, named in PROBLEM.findall(path.read_text()):
        assert (urn or named) in PROBLEM_TYPES


def test_something_is_found() -> None:
    text = "\n".join(code for path in DOCUMENTS for code in _code(path))
    assert len(COMMAND.findall(text)) > 100
    assert len(PATH.findall(text)) > 60
    assert len(FILE.findall(text)) > 30
    assert len(ROUTES) > 40


@pytest.mark.parametrize(
    ("page", "name"), [(settings_page.page, "settings"), (definitions_page.page, "definitions")]
)
def test_a_page_made_from_the_code_is_up_to_date(page, name: str) -> None:
    assert (ROOT / f"docs/{name}.md").read_text() == page(), f"run make {name}"


def test_every_setting_is_on_its_page_with_a_meaning() -> None:
    rows = re.findall(r"^\| `(EXPUNGE_\w+)` \| (.{12,}?) \|", settings_page.page(), re.M)
    assert sorted(name for name, _ in rows) == sorted(
        f"EXPUNGE_{name.upper()}" for name in Settings.model_fields
    )

"""Every name in the documents exists: commands, options, settings, paths, files, problems."""

import json
import re
from pathlib import Path

from app.api.models import ModelBody, RecipeBody
from app.api.plans import PolicyBody
from app.api.protocol.errors import PROBLEM_TYPES
from app.runtime.settings import Settings, unknown_names
from docs import pages
from tests.unit.app.cli.test_help import ALL, LEAVES

ROOT = Path(__file__).parents[3]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
} | {page.__name__: page() for page in (pages.settings, pages.definitions, pages.problems)}
BODIES = (ModelBody, RecipeBody, PolicyBody)
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
COMMAND = re.compile(r"(?<![\w./-])expunge ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)([^\n|;&`#'()$>]*)")
PATH = re.compile(r"/(?:v1|opendsr|\.well-known)/[^\s`\"')>\]|,]*")
FILE = re.compile(
    r"(?<![\w./-])(?:app|workers|migrations|benchmarks|examples|tests|deploy)/[\w./*-]+"
)
PROBLEM = re.compile(r"urn:expunge:problem:([a-z-]+)|\b[45]\d\d `([a-z]+(?:-[a-z]+)+)`")
ROUTES = json.loads((ROOT / "tests/golden/openapi.json").read_text())["paths"]
NOT_A_COMMAND = "data key"  # a label in a ciphertext
NOT_OURS = {"/.well-known/openid-configuration"}
NOT_THERE = {"app/planning/mechanisms/noise_once.py", "workers/mechanisms/noise_once.py"}
"""What somebody adds who follows docs/development.md."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

CODES = [
    (name, found[0].replace("\\\n", " ").strip("`"))
    for name, text in DOCUMENTS.items()
    for found in CODE.finditer(text)
]


def test_commands_and_their_options() -> None:
    unknown, said = [], 0
    for where, code in CODES:
        for words, rest in COMMAND.findall(code):
            said += 1
            name = words if words in ALL else words.split()[0]
            if words == NOT_A_COMMAND:
                continue
            if name not in ALL or (name not in LEAVES and words != name):
                unknown.append((where, words))
            elif name in LEAVES:
                known = {"--help"}.union(*(p.opts + p.secondary_opts for p in LEAVES[name].params))
                options = set(re.findall(r"(?<!\S)--[a-z-]+", rest))
                unknown += [(where, words, option) for option in options - known]
    assert unknown == []
    assert said > 100


def test_settings() -> None:
    for where, text in DOCUMENTS.items():
        names = set(re.findall(r"\bEXPUNGE_[A-Z0-9_]+\b(?!…)", text))
        examples = {"EXPUNGE_"} | {name for name in names if f"`{name}…`" in text}
        assert list(unknown_names(names - examples, Settings.model_fields)) == [], where


def test_paths_of_the_api() -> None:
    patterns = [re.compile(re.sub(r"\\{[^/]*\\}", "[^/]+", re.escape(route))) for route in ROUTES]
    found = {(where, path) for where, code in CODES for path in PATH.findall(code)}
    assert len(found) > 40
    for where, path in found:
        called = re.sub(r"[?#].*", "", path).rstrip("./…")
        there = any(route.startswith(f"{called}/") for route in ROUTES) or path in NOT_OURS
        assert there or any(pattern.fullmatch(called) for pattern in patterns), (where, path)


def test_files_and_targets() -> None:
    found = {(where, name) for where, code in CODES for name in FILE.findall(code)}
    assert len(found) > 30
    for where, name in found:
        module = name.rstrip("./")
        there = name in NOT_THERE or (ROOT / f"{module}.py").exists()
        assert there or list(ROOT.glob(module)), (where, name)
    targets = {name for _, code in CODES for name in re.findall(r"(?m)^\s*make ([a-z-]+)", code)}
    assert targets <= TARGETS


def test_problems() -> None:
    for where, text in DOCUMENTS.items():
        named = {urn or name for urn, name in PROBLEM.findall(text)}
        assert named <= PROBLEM_TYPES.keys(), where


def test_every_setting_problem_and_field_is_on_a_page_with_a_meaning() -> None:
    rows = re.findall(r"^\| `EXPUNGE_(\w+)` \| (.{12,}?) \|", pages.settings(), re.M)
    assert sorted(name.lower() for name, _ in rows) == sorted(Settings.model_fields)
    assert re.findall(r"^## (.*)$", pages.problems(), re.M) == list(PROBLEM_TYPES)
    fields = [name for body in BODIES for name in body.model_fields]
    assert re.findall(r"^\| `(\w+)` \| .{2,}? \| .{6,}? \|", pages.definitions(), re.M) == fields

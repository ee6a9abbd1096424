"""The picture of the rooms is the one that import-linter checks."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def floors(*rows: str) -> list[set[str]]:
    return [set(re.findall(r"\w+", row)) for row in rows]


def test_the_picture_has_the_rooms_and_the_floors_that_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = {
        contract["name"].partition(":")[0]: contract.get("layers")
        for contract in project["tool"]["importlinter"]["contracts"]
    }
    picture = (ROOT / "docs/architecture.md").read_text().partition("```text\n")[2]
    boxes = picture.partition("```")[0].partition("\napp ")
    drawn: dict[str, list[set[str]]] = {}
    inside = ""
    for box, text in (("workers", boxes[0]), ("app", boxes[2])):
        for row in re.findall(r"\n (.*)", text):
            cells = row.split("│")
            names = {cell.split()[0] for cell in cells}
            inner = cells[0].startswith("   ")
            drawn.setdefault(inside if inner else box, []).append(names)
            inside = inside if inner else cells[0].split()[0]
    workers = [row.replace("workers.", "") for row in contracts["the rooms of workers"]]
    assert drawn["workers"] == floors(*workers)
    assert drawn["app"] == floors(*contracts["the rooms of app"])
    inner = contracts["rooms within rooms"]
    for room in ("ledger", "registry", "evidence"):
        inside_it = {path.stem for path in (ROOT / "app" / room).iterdir()}
        there = [names for names in floors(*inner) if names <= inside_it]
        assert drawn[room] == there

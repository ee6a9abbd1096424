"""The compose file and the Dockerfile, read as Docker reads them, so far as they are used."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::-([^}]*))?\}")
IMAGE = r"[a-z]+(/[a-z]+)?:[0-9][a-z0-9.-]*@sha256:[0-9a-f]{64}"
"""How others' images are named: with a version for people, and a digest for machines."""
APP_SERVICES = ("init", "api", "dispatcher", "cpu-worker", "gpu-worker")


def compose() -> dict[str, Any]:
    """Return the compose file with the defaults of its variables."""

    def fill(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else match[2] or ""

    return yaml.safe_load(_VARIABLE.sub(fill, (ROOT / "docker-compose.yml").read_text()))


def instructions(stage: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage of the Dockerfile, those of its base stages first."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    stages: dict[str, list[tuple[str, str]]] = {}
    own: list[tuple[str, str]] = []
    for line in text.splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            own = stages[alias] = list(stages.get(base, []))
        elif name.isupper():
            own.append((name, rest.strip()))
    return stages[stage]


def image_environment(stage: str) -> dict[str, str]:
    """Return the variables that a stage's image sets, but PATH."""
    pairs = [
        pair.split("=", 1)
        for name, rest in instructions(stage)
        if name == "ENV"
        for pair in shlex.split(rest)
    ]
    return {name: value for name, value in pairs if name != "PATH"}


def last(stage: str, instruction: str) -> Any:
    """Return the value of an instruction that is in force in a stage: JSON, or else text."""
    value = [rest for name, rest in instructions(stage) if name == instruction][-1]
    return json.loads(value) if value.startswith("[") else value


def copied(stage: str) -> list[str]:
    """Return what a stage copies from the build context."""
    return [
        source
        for name, rest in instructions(stage)
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]


def is_in_context(path: str) -> bool:
    """Say whether a file reaches the builder, by the patterns of .dockerignore that are used."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern, keep = line.removeprefix("!"), line.startswith("!")
        if _ignores(pattern, path):
            kept = keep
    return kept


def _ignores(pattern: str, path: str) -> bool:
    parts = path.split("/")
    if pattern.startswith("**/"):
        return any(Path(part).match(pattern[3:]) for part in parts)
    if pattern == "*":
        return True
    return any("/".join(parts[:depth]) == pattern for depth in range(1, len(parts) + 1))


def source_files(directory: Path) -> list[str]:
    """Return the files below a directory of the repository, relative to the repository."""
    return [
        str(Path(folder, name).relative_to(ROOT))
        for folder, _, names in os.walk(directory)
        for name in names
        if "__pycache__" not in folder
    ]

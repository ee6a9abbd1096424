"""The locks: what is installed, by version and hash."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.compose import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock")
PINNED = re.compile(r"([A-Za-z0-9_.-]+)==([^ \\]+)(.*)", re.DOTALL)


def pins(name: str) -> dict[str, tuple[str, str]]:
    """Return versions by names, each with the rest of its line: the hashes, in a lock."""
    lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    found = (PINNED.fullmatch(line) for line in lines if not line.startswith("#"))
    return {str(canonicalize_name(one[1])): (one[2], one[3]) for one in found if one}


def direct(*extras: str) -> set[str]:
    """Return what the core and some extras ask for, with those that they are made of."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    found, waiting = set(), [*project["dependencies"]]
    waiting += [one for extra in extras for one in optional[extra]]
    while waiting:
        one = Requirement(waiting.pop())
        if one.name == project["name"]:
            waiting += [inner for extra in one.extras for inner in optional[extra]]
        else:
            found.add(str(canonicalize_name(one.name)))
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_the_pinned_versions_with_hashes(name: str) -> None:
    pinned = pins("constraints.txt")
    for package, (version, hashes) in pins(name).items():
        assert version == pinned[package][0], f"{package}: run 'make lock'"
        assert re.fullmatch(r"( +--hash=sha256:[0-9a-f]{64})+", hashes), package


def test_the_locks_are_complete_but_for_torch() -> None:
    libraries_of_networks = {"torch", "torchvision", "timm"}  # as torch: no lock
    assert (
        set(pins("requirements-dev.lock")) == set(pins("constraints.txt")) - libraries_of_networks
    )
    assert direct("all", "dev", "bench") - {"torch"} <= set(pins("requirements-dev.lock"))
    assert direct("worker") - {"torch"} <= set(pins("requirements.lock"))


def test_what_runs_the_service_is_locked_without_tools() -> None:
    tools = direct("dev", "bench") - direct("worker")
    assert not {"pytest", "uv", "moto", "mypy"} & set(pins("requirements.lock"))
    assert "pytest" in tools

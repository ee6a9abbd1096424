"""Our processes start beside somebody's own ``app``, and find factories through ``PYTHONPATH``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.runtime.processes import starting
from app.runtime.processes.starting import START, python_command

_HIDING = ("app", "workers", "demo", "expunge", "migrations", "redis", "json")
_SHOWN = """
import app, json, redis, workers, pathlib, sys
import factories
for module in (app, workers, json, redis, factories):
    print(pathlib.Path(module.__file__).parent)
"""


_ACCOUNT = ("--mechanism", "gaussian_mu", "--param", "epsilon=1", "--param", "delta=1e-5")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A project with packages of the names of ours, of our libraries' and of Python's."""
    for name in _HIDING:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('their {name}')")
    (tmp_path / "factories.py").write_text("")
    (tmp_path / "shown.py").write_text(_SHOWN)
    return tmp_path


@pytest.mark.parametrize(
    "pythonpath",
    ["named", *(pytest.param(other, marks=pytest.mark.slow) for other in ("", "empty entries"))],
)
def test_a_command_runs_in_a_directory_that_has_an_app_of_its_own(
    theirs: Path, pythonpath: str
) -> None:
    paths = {"": "", "named": str(theirs), "empty entries": os.pathsep}[pythonpath]
    answer = subprocess.run(
        python_command("app.cli", "account", *_ACCOUNT),
        cwd=theirs,
        env={"PATH": os.defpath, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0.268051" in answer.stdout


def test_factories_are_found_through_pythonpath_after_ours_and_all_libraries(theirs: Path) -> None:
    answer = subprocess.run(
        python_command("shown"),
        cwd="/",
        env={"PATH": os.defpath, "PYTHONPATH": str(theirs)},
        capture_output=True,
        text=True,
        check=False,
    )
    app, workers, json, redis, factories = map(Path, answer.stdout.split())
    assert app.parent == workers.parent == START.parents[1]
    assert theirs not in (json.parent, redis.parent)
    assert factories == theirs


def test_confined_processes_are_ours_too(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(theirs), *sys.path])
    process = starting.start("shown", pipe=subprocess.PIPE)
    shown, _ = process.communicate()
    assert str(START.parents[1] / "app").encode() == shown.split()[0]


def test_beside_an_app_of_theirs_the_library_says_what_hides_it(theirs: Path) -> None:
    (theirs / "app" / "__init__.py").write_text("")
    program = (
        f"import sys; sys.path.append({str(START.parents[1])!r}); import expunge; expunge.load"
    )
    for name in ("expunge", "json"):
        (theirs / name / "__init__.py").unlink()
        (theirs / name).rmdir()
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=theirs,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert f"'app' at {theirs / 'app'} hides Expunge's own" in answer.stderr

"""Every target, for a few seconds each; longer by hand with ``python -m tests.system.fuzzing``."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.system.fuzzing.targets import TARGETS

SECONDS = 5
REPOSITORY = Path(__file__).parents[3]


def fuzz(target: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Search one target; what breaks it is left in the directory."""
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")
    return subprocess.run(
        [sys.executable, "-m", "tests.system.fuzzing", target, "--seconds", str(SECONDS)],
        cwd=directory,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"planted"}))
def test_seeds_are_read_to_the_end(target: str) -> None:
    for seed in TARGETS[target].seeds:
        TARGETS[target].read(seed)


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"planted"}))
def test_nothing_but_a_refusal_comes_of_any_bytes(target: str, tmp_path: Path) -> None:
    searched = fuzz(target, tmp_path)
    assert searched.returncode == 0, searched.stderr[-3000:]
    assert "DONE" in searched.stderr


@pytest.mark.slow
def test_a_planted_defect_is_found(tmp_path: Path) -> None:
    searched = fuzz("planted", tmp_path)
    assert searched.returncode != 0
    assert "IndexError: planted" in searched.stdout + searched.stderr
    assert any(path.name.startswith("crash-") for path in tmp_path.iterdir())

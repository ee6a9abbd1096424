"""Every target, for a few seconds each; longer by hand with ``python -m tests.system.fuzzing``."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.system.fuzzing.targets import TARGETS

SECONDS = 2
REPOSITORY = Path(__file__).parents[3]
REAL = sorted(set(TARGETS) - {"planted"})


@pytest.mark.parametrize("target", REAL)
def test_seeds_are_read_to_the_end(target: str) -> None:
    for seed in TARGETS[target].seeds:
        TARGETS[target].read(seed)


@pytest.mark.nightly
def test_nothing_but_a_refusal_comes_of_any_bytes_and_a_planted_defect_is_found(
    tmp_path: Path,
) -> None:
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")
    command = [sys.executable, "-m", "tests.system.fuzzing", *REAL, "planted"]
    searched = subprocess.run(
        [*command, "--seconds", str(SECONDS)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE_S,
        check=False,
    )
    assert searched.returncode != 0
    assert searched.stderr.splitlines()[-1] == "broken: planted", searched.stderr[-5000:]
    assert searched.stderr.count("\tDONE ") == len(REAL)
    assert "IndexError: planted" in searched.stdout + searched.stderr
    assert [path.name[:6] for path in tmp_path.iterdir()] == ["crash-"]

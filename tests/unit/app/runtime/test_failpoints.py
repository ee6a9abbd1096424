"""Points of a run: inert outside of tests, and every fault strikes once."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_S

_PROGRAM = """
from app.runtime.failpoints import halfway, reach
reach("here")
print("past the point")
report = halfway("middle", lambda step, steps, _: print(step))
for step in range(1, 6):
    report(step, 5, None)
"""
_STEPS = "1\n2\n3\n4\n5\n"


@pytest.fixture
def points(tmp_path):
    directory = tmp_path / "points"
    directory.mkdir()
    return directory


@pytest.fixture
def passing(points):
    def passing(environment="test"):
        return subprocess.run(
            [sys.executable, "-u", "-c", _PROGRAM],
            env={
                **os.environ,
                "EXPUNGE_ENVIRONMENT": environment,
                "EXPUNGE_TEST_POINTS": str(points),
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return passing


def test_a_process_dies_at_its_point_and_the_next_one_passes(points, passing):
    (points / "here.0.SIGKILL").touch()
    assert passing().returncode == -signal.SIGKILL
    assert list(points.iterdir()) == []
    assert passing().stdout == f"past the point\n{_STEPS}"


def test_halfway_is_the_middle_step(points, passing):
    (points / "middle.0.SIGKILL").touch()
    dead = passing()
    assert (dead.returncode, dead.stdout) == (-signal.SIGKILL, "past the point\n1\n2\n3\n")


def test_faults_strike_in_order(points, passing):
    for fault in ("here.0.pass", "here.1.ETIMEDOUT"):
        (points / fault).touch()
    assert passing().returncode == 0
    failed = passing()
    assert failed.stdout == ""
    assert "TimeoutError" in failed.stderr
    assert passing().returncode == 0


@pytest.mark.parametrize("environment", ["production", "development"])
def test_nothing_happens_outside_of_tests(environment, points, passing):
    for name in ("here.0.SIGKILL", "middle.0.SIGKILL"):
        (points / name).touch()
    assert passing(environment).stdout == f"past the point\n{_STEPS}"
    assert len(list(points.iterdir())) == 2

"""Attacks on certificates, over a service: who wins, and against what."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.documents import Reader, reader
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.nightly

NOISY = "noisy_gd_convex"
"""Of 48 guesses at ε = 1, 44 or more are right less than once in 10⁸ times."""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reader(tmp_path_factory.mktemp("user") / "work") as user, user.service():
        yield user


def attack(user: Reader, name: str) -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, f"examples/attacks/{name}.py"],
        cwd=user.directory,
        env=user.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {each["attacked"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_a_requester_who_looks_at_releases_is_stopped_by_noise_alone(user: Reader) -> None:
    found = attack(user, "adaptive_requester")
    noisy = found.pop(NOISY)
    assert noisy["adaptive"]
    assert noisy["right"] < 44
    assert {name: each["adaptive"] for name, each in found.items()} == {
        "retraining": False,
        "tracked_release": False,
        "exact_training": True,
    }
    assert all(each["right"] == each["of"] for each in found.values())


def test_only_a_service_that_keeps_a_secret_gives_it_away(user: Reader) -> None:
    keeping, *others = attack(user, "secret_state").values()
    assert keeping["right"] >= 44
    assert len(others) == 3
    assert all(each["right"] < 44 for each in others)
    assert [each["adaptive"] for each in others] == [False, True, True]

"""The list of what a verifier trusts: short, and with its reasons in the documentation."""

import re
from pathlib import Path

import pytest

from tests.support.trusted import TRUSTED, is_trusted

PAGE = (Path(__file__).parents[5] / "docs/verifying.md").read_text()


def test_the_documentation_lists_exactly_these() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("* `predicate.")]
    assert len(rows) <= 18
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row.partition(": ")[0])]
    assert sorted(named) == sorted(TRUSTED)


@pytest.mark.parametrize(
    ("path", "trusted"),
    [
        ("predicate.model.name", True),
        ("predicate.evaluation.metrics.accuracy", True),
        ("predicate.mechanism.frame.scale.1.weight", True),
        ("predicate.guarantee.epsilon", False),
        ("predicate.guarantee", False),
        ("predicate.mechanism.parameters.noise_std", False),
        ("predicate.mechanism.parameters", False),
        ("predicate", False),
        ("subject.0.digest.sha256", False),
    ],
)
def test_whether_a_leaf_is_on_it(path: str, trusted: bool) -> None:
    assert is_trusted(path) == trusted

"""The list of what a verifier trusts: short, with reasons, and the same in the documentation."""

from pathlib import Path

import pytest

from tests.support.trusted import TRUSTED, Trusted, is_trusted

PAGE = (Path(__file__).parents[5] / "docs/verifying.md").read_text()


@pytest.mark.parametrize("entry", TRUSTED, ids=lambda entry: entry.paths[0])
def test_the_documentation_has_each_entry_with_its_reason(entry: Trusted) -> None:
    (row,) = [line for line in PAGE.splitlines() if f"| {entry.reason} |" in line]
    assert all(f"`{path}`" in row for path in entry.paths)


def test_the_documentation_lists_nothing_else() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `predicate.")]
    assert len(rows) == len(TRUSTED)


def test_the_list_is_short() -> None:
    assert len(TRUSTED) <= 18


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

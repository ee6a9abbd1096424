"""The benchmark of audits: what it counts, and the worst case that needs no service."""

import json

import pytest

from benchmarks import audits, harness


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "low", "high", "few"),
    [
        (audits.perturbed(1.0), 0.6, 1.0, True),
        (audits.perturbed(0.25), 3.0, 9.0, False),
        (audits.published(), 5.0, 6.6, False),
    ],
)
def test_the_worst_case_of_noise_is_as_bad_as_stated_and_no_worse(case, low, high, few) -> None:
    found = audits.worst_case(case, 40)
    assert low < found["epsilon_lower_bound"] < high
    assert (found["contradicted"] <= 8) if few else (found["contradicted"] >= 32)


def test_the_table_counts_what_was_found(tmp_path) -> None:
    document = json.loads((harness.RESULTS / "audits.json").read_text())
    shown = audits.table(document)
    for name, case in document["builds"].items():
        assert len(case["right"]) == len(case["right_before"]) > 0
        assert f"| {name} |" in shown
        assert f"{case['contradicted']} of {len(case['right'])} |" in shown
    audits.figure(document, tmp_path / "audits.png")
    assert (tmp_path / "audits.png").stat().st_size > 10_000


def test_intervals_are_exact() -> None:
    low, high = audits.interval(0, 100)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025**0.01))
    assert audits.interval(100, 100) == (pytest.approx(0.025**0.01), 1.0)

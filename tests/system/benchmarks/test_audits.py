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
    document["builds"]["honest"]["dp_sgd"] = {"right_before": [], "right": [], "contradicted": 0}
    shown = audits.table(document)
    assert "dp_sgd" not in shown  # it has not had its turn
    del document["builds"]["honest"]["dp_sgd"]
    for sort, cases in document["builds"].items():
        for name, case in cases.items():
            assert len(case["right"]) == len(case["right_before"]) > 0
            assert f"| {name} |" in shown
            assert f"{case['contradicted']} of {len(case['right'])} |" in shown
        counted = sum(len(case["right"]) for case in cases.values())
        assert f"of {counted} |" in shown.partition(f"| all {sort} |")[2].partition("\n")[0]
    audits.figure(document, tmp_path / "audits.png")
    assert (tmp_path / "audits.png").stat().st_size > 10_000


def test_intervals_are_exact() -> None:
    low, high = audits.interval(0, 100)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025**0.01))
    assert audits.interval(100, 100) == (pytest.approx(0.025**0.01), 1.0)


def test_the_next_build_is_of_the_rarer_sort_and_cheap_once_each_has_its_share() -> None:
    def case(audits: int, seconds: float) -> dict[str, object]:
        return {"right": [20] * audits, "seconds": seconds}

    builds = {
        "honest": {"head": case(8, 9.0), "MLP": case(4, 60.0)},
        "sabotaged": {"head": case(6, 9.0), "MLP": case(3, 60.0)},
    }
    assert audits.next_build(builds) == ("sabotaged", "MLP")
    builds["sabotaged"]["MLP"] = case(4, 80.0)
    assert audits.next_build(builds) == ("sabotaged", "head")
    builds["sabotaged"]["head"] = case(10, 90.0)
    assert audits.next_build(builds) == ("honest", "head")

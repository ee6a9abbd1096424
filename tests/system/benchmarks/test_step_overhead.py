"""Steps are timed where the service takes them, and every mechanism is among them."""

import pytest
import torch

from app.planning.mechanisms import catalogue
from benchmarks import noise_throughput, step_cases, step_overhead

CPU = torch.device("cpu")
WITHOUT_NOISE = {
    "retraining",
    "sharded_retraining",
    "exact_training",
    "sufficient_statistics",
    "boosting",
}
NOISY = set(catalogue.MECHANISMS) - WITHOUT_NOISE
HEADS = [case for case in step_cases.CASES if case.is_convex]


def test_every_mechanism_that_takes_noise_is_timed():
    assert {name for case in step_cases.CASES for name in case.mechanisms} == NOISY


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.network)
def test_each_mechanism_of_a_head_takes_as_many_steps_as_are_timed(case):
    for name in case.mechanisms:
        stamps = case.steps_of(name, noise_throughput.OrdinaryNoise(), CPU, 3)
        assert len(stamps) == 4
        assert stamps == sorted(stamps)


def test_rows_tell_the_ratio_and_the_share_of_the_noise():
    case = HEADS[0]
    rows = list(step_overhead.measure(case, CPU, rounds=1, steps=2))
    assert {(row["mechanism"], row["noise"]) for row in rows} == {
        (name, noise) for name in case.mechanisms for noise in step_overhead.NOISES
    }
    for row in rows:
        assert row["ratio"] == pytest.approx(row["step_ms"] / row["plain_ms"])
        assert row["noise_share"] > 0
    text = step_overhead.table({"rows": rows})
    assert all(name in text for name in case.mechanisms)

"""Steps are timed where the service takes them, and every mechanism is among them."""

import pytest
import torch

from app.planning.mechanisms import catalogue
from benchmarks import step_overhead
from benchmarks.convex import OrdinaryNoise
from workers.noise.generators import SecureNoise

CPU = torch.device("cpu")
WITHOUT_NOISE = {
    "retraining",
    "sharded_retraining",
    "exact_training",
    "sufficient_statistics",
    "boosting",
}
NOISY = set(catalogue.MECHANISMS) - WITHOUT_NOISE
HEADS = [case for case in step_overhead.CASES if case.is_convex]


def test_every_mechanism_that_takes_noise_is_timed():
    assert {name for case in step_overhead.CASES for name in case.mechanisms} == NOISY


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.network)
def test_each_mechanism_of_a_head_takes_as_many_steps_as_are_timed(case):
    for name in case.mechanisms:
        stamps = case.steps_of(name, OrdinaryNoise(), CPU, 3)
        assert len(stamps) == 4
        assert stamps == sorted(stamps)


@pytest.mark.parametrize("installed", [False, True])
def test_rows_tell_the_ratio_and_the_share_of_the_noise(monkeypatch, installed):
    case = HEADS[0]
    if installed:
        pytest.importorskip("opacus")
    monkeypatch.setattr(step_overhead, "has_opacus", lambda: installed)
    rows = list(step_overhead.measure(case, CPU, rounds=1, steps=2))
    assert [row["mechanism"] for row in rows] == [*case.mechanisms, *["opacus"] * installed]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["step_ms"] / row["plain_ms"])
        assert row["noise_share"] > 0


def test_both_sources_of_noise_add_to_the_same_vector_in_turn(monkeypatch):
    filled = []

    def seconds(source, position):
        filled.append((source.name, position.data_ptr(), position.dtype))
        return {"torch.randn": 0.5}.get(source.name, 2.0)

    monkeypatch.setattr(step_overhead, "_seconds", seconds)
    ours = SecureNoise().name
    measured = step_overhead.noise_a_second(CPU, rounds=2, size=1000)
    assert [name for name, *_ in filled] == ["torch.randn", ours] * 3
    assert {each[1:] for each in filled} == {(filled[0][1], torch.float64)}
    assert measured == {"torch.randn": 2000, ours: 500}

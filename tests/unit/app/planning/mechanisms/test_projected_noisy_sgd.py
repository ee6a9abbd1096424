import json
import math
from pathlib import Path

import pytest

from app.accounting.chains.minorant import minorant_mu
from app.accounting.chains.noisy_chain import constant_mu
from app.accounting.histories.history import History
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from benchmarks import published_tables
from tests.support.histories import recipe

ROOT = Path(__file__).parents[5]
PUBLISHED = json.loads((ROOT / "benchmarks/published/chien-2024.json").read_text())


def mu(history):
    return ProjectedNoisySgd(history=history).account().mu


def trained(noise_std=0.1, steps=9):
    """Training over a cycle of three batches, every step noisy."""
    return History(recipe(batches=3)).after_steps(steps, noise_std=noise_std)


def epochs(batch_size, neighbours):
    steps = published_tables.our_steps(
        published_tables.Problem.of(PUBLISHED["setting"]),
        batch_size=batch_size,
        noise_scale=0.05,
        neighbours=neighbours,
    )
    return sum(steps) * batch_size / 11264


def test_reference_totals_for_a_hundred_requests_from_the_drift_alone():
    assert epochs(11264, Neighbours.REPLACEMENT) == 4397
    assert epochs(32, Neighbours.REPLACEMENT) == pytest.approx(29.3, abs=0.05)
    assert epochs(11264, Neighbours.ZERO_OUT) < 4397


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_the_noise_of_the_whole_lineage_counts(batch):
    shifts = [0.25 * (step % 3 == batch) for step in range(9)] + [0.0] * 4
    expected = minorant_mu(
        start_distance=0.0, contractions=[0.95] * 13, shifts=shifts, noise_stds=[0.1] * 13
    )
    found = mu(trained().after_request({batch: 1}).after_steps(4, noise_std=0.1))
    assert found == pytest.approx(expected, rel=1e-11)


def test_never_worse_than_counting_from_the_drift():
    for steps in (1, 5, 50):
        history = trained().after_request({2: 1}).after_steps(steps, noise_std=0.1)
        drift = 0.25 * (1 + 0.95**3 + 0.95**6)
        alone = constant_mu(
            start_distance=drift, contraction=0.95, shift=0.0, noise_std=0.1, steps=steps
        )
        assert mu(history) < alone


def test_a_record_seen_last_is_hidden_least_and_groups_add():
    by_batch = [mu(trained().after_request({batch: 1})) for batch in range(3)]
    assert by_batch == sorted(by_batch)
    assert mu(trained().after_request({2: 4})) == pytest.approx(4 * by_batch[2], rel=1e-11)


def test_noise_of_other_runs_is_no_noise_of_this_one():
    quiet = trained(noise_std=0.01).after_request({2: 1}).after_steps(5, noise_std=0.1)
    loud = trained(noise_std=0.1).after_request({2: 1}).after_steps(5, noise_std=0.1)
    assert mu(loud) < mu(quiet)


def test_training_without_noise_is_counted_as_it_was():
    history = trained(noise_std=0.0).after_request({2: 1})
    with pytest.raises(ParameterError) as caught:
        mu(history)
    assert caught.value.name == "noise_std"
    drift = 0.25 * (1 + 0.95**3 + 0.95**6)
    alone = constant_mu(start_distance=drift, contraction=0.95, shift=0.0, noise_std=0.1, steps=5)
    assert mu(history.after_steps(5, noise_std=0.1)) == pytest.approx(alone, rel=1e-11)


def test_nothing_to_forget_is_exact():
    guarantee = ProjectedNoisySgd(history=trained()).account()
    assert guarantee.mu == 0.0
    assert guarantee.epsilon(delta=1e-15) == 0.0


def test_the_paper_is_named():
    assert "Chien et al. 2024, Algorithm 1" in ProjectedNoisySgd.terms.source
    assert math.isfinite(mu(trained().after_request({0: 1})))

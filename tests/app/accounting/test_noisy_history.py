import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from app.accounting import gaussian, noisy_history, projected_noisy_sgd
from app.accounting.drift import DriftLedger, Recipe
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError

RATE, SHIFT = 0.9, 0.5


def recipe(batches=4, **change):
    return Recipe(
        **{
            "learning_rate": 2.0,
            "weight_decay": 0.05,
            "smoothness": 0.25,
            "lipschitz": 1.0,
            "batch_size": 8,
            "batches": batches,
            "neighbours": Neighbours.REPLACEMENT,
            **change,
        }
    )


def alone(ledger, steps, noise_std=0.5):
    return projected_noisy_sgd.account(
        drift=ledger.drift(),
        learning_rate=2.0,
        weight_decay=0.05,
        smoothness=0.25,
        noise_std=noise_std,
        steps=steps,
        neighbours=Neighbours.REPLACEMENT,
    ).mu


def test_full_batch_in_closed_form():
    ledger = DriftLedger(recipe(batches=1)).after_steps(20).after_request({0: 1}).after_steps(3)
    drift = RATE**3 * SHIFT * (1 - RATE**20) / (1 - RATE)
    variance = 0.25 * (1 - RATE**46) / (1 - RATE**2)
    found = noisy_history.account(ledger=ledger.to_json(), noise_std=0.5)
    assert found.mu == pytest.approx(drift / math.sqrt(variance), rel=1e-11)
    assert found.terms.neighbours is Neighbours.REPLACEMENT


def test_one_record_in_a_cycle_by_hand():
    # Batch 1 of 4 is visited at steps 2 and 6; 7 steps of training and 1 of unlearning.
    ledger = DriftLedger(recipe()).after_steps(7).after_request({1: 1}).after_steps(1)
    run = [0.25 / RATE ** (2 * k) for k in range(1, 9)]
    heights = [SHIFT / RATE**2, SHIFT / RATE**2 + SHIFT / RATE**6]
    first, second = sum(run[1:5]), sum(run[5:])
    # Nothing before step 2 helps; from there one straight line unless the middle point is lower.
    one = heights[1] ** 2 / (first + second)
    two = heights[0] ** 2 / first + (heights[1] - heights[0]) ** 2 / second
    straight = heights[1] / (first + second) * first <= heights[0]
    found = noisy_history.account(ledger=ledger.to_json(), noise_std=0.5).mu
    assert found == pytest.approx(math.sqrt(one if straight else two), rel=1e-11)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3), st.integers(1, 9)
)
def test_never_worse_than_forgetting_the_noise_of_training(training, run, first, second, last):
    ledger = DriftLedger(recipe()).after_steps(training).after_request({first: 1})
    ledger = ledger.after_steps(run).after_request({second: 2})
    found = noisy_history.account(ledger=ledger.after_steps(last).to_json(), noise_std=0.5).mu
    assert found <= alone(ledger, last) * (1 + 1e-11)
    longer = noisy_history.account(ledger=ledger.after_steps(last + 1).to_json(), noise_std=0.5)
    assert longer.mu <= found * (1 + 1e-11)


def test_the_ball_bounds_the_drift_too():
    tight = DriftLedger(recipe(radius=0.05)).after_steps(400).after_request({0: 8})
    found = noisy_history.account(ledger=tight.after_steps(4).to_json(), noise_std=0.5).mu
    assert found <= alone(tight, 4) * (1 + 1e-11)
    unfinished = noisy_history.account(ledger=tight.to_json(), noise_std=0.5).mu
    assert unfinished > 0


def test_survives_storage_and_calibrates():
    ledger = DriftLedger(recipe()).after_steps(40).after_request({3: 1}).after_steps(4)
    stored = json.loads(json.dumps(ledger.to_json()))
    for epsilon, delta in ((1.0, 1e-5), (1e-3, 1e-15)):
        noise_std = noisy_history.calibrate(epsilon=epsilon, delta=delta, ledger=stored)
        found = noisy_history.account(ledger=stored, noise_std=noise_std)
        assert found.meets(epsilon=epsilon, delta=delta)
        assert found.mu == pytest.approx(gaussian.mu_of(epsilon=epsilon, delta=delta), rel=1e-11)


def test_nothing_forgotten_is_exact():
    ledger = DriftLedger(recipe()).after_steps(40)
    assert noisy_history.account(ledger=ledger.to_json(), noise_std=0.5).mu == 0.0


def test_an_attack_on_the_linear_worst_case_comes_close_and_never_beyond():
    generator = np.random.default_rng(21)
    ledger = DriftLedger(recipe()).after_steps(24).after_request({3: 1}).after_steps(2)
    worlds = []
    for sign in (1, -1):
        x = np.zeros(200_000)
        for step in range(26):
            pushed = sign * SHIFT / 2 if step < 24 and step % 4 == 3 else 0.0
            x = RATE * x + pushed + 0.5 * generator.standard_normal(x.size)
        worlds.append(x)
    claimed = noisy_history.account(ledger=ledger.to_json(), noise_std=0.5).mu
    error = np.mean(worlds[0] < 0), np.mean(worlds[1] > 0)
    # Five standard errors of each rate, far beyond Clopper-Pearson at one in a million.
    limits = [rate + 5 * math.sqrt(rate / 200_000) for rate in error]
    bound = norm.ppf(1 - limits[0]) - norm.ppf(limits[1])
    assert 0.9 * claimed < bound <= claimed


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -1.0])
def test_refuses_noise_outside_its_range(bad):
    ledger = DriftLedger(recipe()).after_steps(4).to_json()
    with pytest.raises(ParameterError) as caught:
        noisy_history.account(ledger=ledger, noise_std=bad)
    assert caught.value.name == "noise_std"


def test_refuses_a_ledger_without_steps_or_with_too_many():
    with pytest.raises(ParameterError):
        noisy_history.account(ledger=DriftLedger(recipe()).to_json(), noise_std=1.0)
    long = DriftLedger(recipe()).after_steps(3_000_000).to_json()
    with pytest.raises(ParameterError):
        noisy_history.account(ledger=long, noise_std=1.0)


def test_the_steps_needed_are_the_fewest_that_meet_the_target():
    ledger = DriftLedger(recipe()).after_steps(40).after_request({1: 2})
    target = {"epsilon": 1.0, "delta": 1e-5}
    steps = noisy_history.steps_needed(**target, ledger=ledger.to_json(), noise_std=0.5)
    assert steps > 1

    def meets(count):
        later = ledger.after_steps(count).to_json()
        return noisy_history.account(ledger=later, noise_std=0.5).meets(**target)

    assert meets(steps)
    assert not meets(steps - 1)

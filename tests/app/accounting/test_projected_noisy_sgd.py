import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting import gaussian, present_records, projected_noisy_sgd
from app.accounting.drift import Recipe, worst_case_drift
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError
from benchmarks import chien_tables

ROOT = Path(__file__).parents[3]
PUBLISHED = json.loads((ROOT / "benchmarks/published/chien-2024.json").read_text())
GOOD = {
    "drift": 0.06,
    "learning_rate": 2.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "noise_std": 0.1,
    "steps": 12,
}


def epochs(batch_size, neighbours):
    steps = chien_tables.our_steps(
        chien_tables.Problem.of(PUBLISHED["setting"]),
        batch_size=batch_size,
        noise_scale=0.05,
        neighbours=neighbours,
    )
    return sum(steps) * batch_size / 11264


def test_mu_in_closed_form():
    rate = 1 - 2.0 * 0.05
    variance = 0.1**2 * (1 - rate**24) / (1 - rate**2)
    mu = projected_noisy_sgd.account(**GOOD).mu
    assert mu == pytest.approx(0.06 * rate**12 / math.sqrt(variance), rel=1e-12)


def test_reference_totals_for_a_hundred_requests():
    assert epochs(11264, Neighbours.REPLACEMENT) == 4397
    assert epochs(32, Neighbours.REPLACEMENT) == pytest.approx(29.3, abs=0.05)
    assert epochs(11264, Neighbours.ZERO_OUT) < 4397


def test_without_weight_decay_the_variance_alone_grows():
    flat = {**GOOD, "weight_decay": 0.0}
    assert projected_noisy_sgd.account(**flat).mu == pytest.approx(
        0.06 / (0.1 * math.sqrt(12)), rel=1e-12
    )


def test_noise_in_the_papers_convention():
    assert projected_noisy_sgd.noise_std_of(learning_rate=2.0, noise_scale=0.05) == pytest.approx(
        0.1, rel=1e-14
    )


def test_calibrated_noise_meets_its_target_and_is_smallest():
    for epsilon, delta, steps in ((1.0, 1e-5, 12), (1e-3, 1e-15, 1), (50.0, 1e-15, 10**6)):
        given_ = {key: GOOD[key] for key in ("drift", "learning_rate", "weight_decay")}
        given_ |= {"smoothness": 0.25, "steps": steps}
        if steps > 1000:
            given_["weight_decay"] = 1e-6
        noise_std = projected_noisy_sgd.calibrate(epsilon=epsilon, delta=delta, **given_)
        guarantee = projected_noisy_sgd.account(noise_std=noise_std, **given_)
        assert guarantee.meets(epsilon=epsilon, delta=delta)
        assert guarantee.mu == pytest.approx(gaussian.mu_of(epsilon=epsilon, delta=delta), rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(
    drift=st.floats(1e-6, 1.0),
    decay=st.sampled_from([0.0, 1e-6, 0.05, 0.2]),
    noise_std=st.floats(1e-2, 1.0),
    epsilon=st.sampled_from([0.1, 1.0, 8.0]),
)
def test_the_number_of_steps_is_the_smallest(drift, decay, noise_std, epsilon):
    given_ = {**GOOD, "drift": drift, "weight_decay": decay, "noise_std": noise_std}
    given_.pop("steps")
    steps = projected_noisy_sgd.steps_needed(epsilon=epsilon, delta=1e-5, **given_)
    target = gaussian.mu_of(epsilon=epsilon, delta=1e-5)
    assert projected_noisy_sgd.account(steps=steps, **given_).mu <= target
    if steps > 1:
        fewer = projected_noisy_sgd.account(steps=steps - 1, **given_).mu
        assert fewer > target * (1 - 1e-9)


def test_the_odometer_counts_what_account_predicts():
    given_ = {key: GOOD[key] for key in ("drift", "learning_rate", "weight_decay", "smoothness")}
    odometer = projected_noisy_sgd.Odometer(neighbours=Neighbours.REPLACEMENT, **given_)
    with pytest.raises(ParameterError):
        odometer.guarantee()
    for _ in range(12):
        odometer.step(0.1)
    expected = projected_noisy_sgd.account(**GOOD).mu
    assert odometer.mu == pytest.approx(expected, rel=1e-12)
    assert odometer.guarantee().terms.neighbours is Neighbours.REPLACEMENT
    assert odometer.steps == 12


def test_present_records_are_those_of_the_worst_position_and_groups_add():
    given_ = {"learning_rate": 2.0, "weight_decay": 0.05, "smoothness": 0.25, "noise_std": 0.1}
    given_ |= {"lipschitz": 1.0, "batch_size": 8, "batches": 3, "steps": 9}
    found = projected_noisy_sgd.account_present(**given_)
    # Visits at the last step of each of three cycles: shifts of 0.25 at steps 1, 4 and 7 of 7.
    expected = present_records.minorant_mu(
        start_distance=0.0,
        contractions=[0.9] * 7,
        shifts=[0.25, 0.0, 0.0, 0.25, 0.0, 0.0, 0.25],
        noise_stds=[0.1] * 7,
    )
    assert found.mu == pytest.approx(expected, rel=1e-12)
    assert projected_noisy_sgd.account_present(**given_, group=4).mu == pytest.approx(4 * found.mu)


def test_an_odometer_with_calibrated_noise_meets_the_target_on_time():
    given_ = {key: GOOD[key] for key in ("drift", "learning_rate", "smoothness")}
    given_["weight_decay"] = 1e-6
    for steps in (1, 50, 20_000):
        noise_std = projected_noisy_sgd.calibrate(epsilon=1.0, delta=1e-5, steps=steps, **given_)
        odometer = projected_noisy_sgd.Odometer(**given_)
        for _ in range(steps):
            odometer.step(noise_std)
        assert odometer.guarantee().meets(epsilon=1.0, delta=1e-5)


def test_nothing_to_forget_is_exact():
    guarantee = projected_noisy_sgd.account(**{**GOOD, "drift": 0.0})
    assert guarantee.mu == 0.0
    assert guarantee.epsilon(delta=1e-15) == 0.0


def test_drift_of_the_recipe_enters_linearly():
    recipe = Recipe(2.0, 0.05, 0.25, 1.0, 32, 10, Neighbours.ZERO_OUT)
    one = projected_noisy_sgd.account(**{**GOOD, "drift": worst_case_drift(recipe=recipe)})
    two = projected_noisy_sgd.account(
        **{**GOOD, "drift": worst_case_drift(recipe=recipe, records=2)}
    )
    assert two.mu == pytest.approx(2 * one.mu, rel=1e-11)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("drift", -1.0),
        ("drift", math.nan),
        ("drift", math.inf),
        ("learning_rate", 10.0),
        ("learning_rate", 0.0),
        ("weight_decay", -1.0),
        ("smoothness", 0.0),
        ("noise_std", 0.0),
        ("noise_std", math.nan),
        ("steps", 0),
        ("neighbours", "any_start"),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        projected_noisy_sgd.account(**{**GOOD, name: bad})
    assert caught.value.name == name

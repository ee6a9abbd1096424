import math

import pytest

from app.accounting import delete_to_descent, gaussian, tracked_release
from app.accounting.published import neel_theorem_28
from app.domain.errors import ParameterError

GOOD = {"drift": 0.1, "weight_decay": 0.05, "smoothness": 0.25, "noise_std": 0.1}
TARGET = {"epsilon": 1.0, "delta": 1e-5}


def test_mu_decays_by_the_papers_gamma():
    gamma = 0.25 / (0.25 + 2 * 0.05)
    for steps in (0, 1, 10):
        found = delete_to_descent.account(**GOOD, steps=steps)
        assert found.mu == pytest.approx(gamma**steps, rel=1e-12)
        assert found.mu >= gamma**steps


def test_it_is_tracked_release_at_the_largest_step():
    rate = 2 / (0.25 + 2 * 0.05) * (1 - 1e-15)
    expected = tracked_release.account(**GOOD, learning_rate=rate, steps=3)
    assert delete_to_descent.account(**GOOD, steps=3).mu == expected.mu


def test_calibrated_noise_meets_its_target_and_is_smallest():
    job = {name: value for name, value in GOOD.items() if name != "noise_std"}
    noise_std = delete_to_descent.calibrate(**TARGET, **job, steps=4)
    assert delete_to_descent.account(**job, noise_std=noise_std, steps=4).meets(**TARGET)
    less = delete_to_descent.account(**job, noise_std=noise_std * (1 - 1e-6), steps=4)
    assert not less.meets(**TARGET)


def test_the_steps_needed_are_the_fewest_that_meet_the_target():
    steps = delete_to_descent.steps_needed(**TARGET, **GOOD)
    assert steps > 0
    assert delete_to_descent.account(**GOOD, steps=steps).meets(**TARGET)
    assert not delete_to_descent.account(**GOOD, steps=steps - 1).meets(**TARGET)


def test_far_less_noise_than_the_published_theorem():
    """One record among a thousand; the theorem needs long training and one record at a time."""
    drift = 2 / (0.25 + 0.1) / 1000 / (1 - 0.25 / 0.35)
    job = {"weight_decay": 0.05, "smoothness": 0.25}
    published = neel_theorem_28.calibrate(
        **TARGET, **job, lipschitz=1.0, records=1000, dimension=10, steps=30
    )
    assert delete_to_descent.calibrate(**TARGET, **job, drift=drift, steps=30) < published / 100


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("drift", -1.0),
        ("weight_decay", math.nan),
        ("smoothness", 0.0),
        ("noise_std", 0.0),
        ("steps", -1),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        delete_to_descent.account(**{**GOOD, "steps": 1, name: bad})
    assert caught.value.name == name


def test_no_better_than_the_gaussian_mechanism_itself():
    assert delete_to_descent.account(**GOOD).mu == pytest.approx(1.0)
    assert gaussian.epsilon_of(mu=1.0, delta=1e-5) == pytest.approx(
        delete_to_descent.account(**GOOD).epsilon(delta=1e-5)
    )

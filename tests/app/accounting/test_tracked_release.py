import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting import gaussian, projected_noisy_sgd, tracked_release
from app.accounting.terms import Neighbours
from app.domain.errors import CalibrationError, ParameterError

GOOD = {
    "drift": 0.06,
    "learning_rate": 2.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "noise_std": 0.1,
    "steps": 12,
}


def test_mu_in_closed_form():
    assert tracked_release.account(**GOOD).mu == pytest.approx(0.6 * 0.9**12, rel=1e-12)
    assert tracked_release.account(**{**GOOD, "steps": 0}).mu == pytest.approx(0.6, rel=1e-13)


def test_remaining_drift_in_closed_form():
    given_ = {key: GOOD[key] for key in ("drift", "learning_rate", "weight_decay", "smoothness")}
    left = tracked_release.remaining_drift(steps=3, **given_)
    assert left == pytest.approx(0.06 * 0.9**3, rel=1e-12)


def test_calibrated_noise_is_drift_over_mu():
    given_ = {key: value for key, value in GOOD.items() if key != "noise_std"}
    for epsilon, delta in ((1.0, 1e-5), (1e-3, 1e-15), (50.0, 1e-15)):
        noise_std = tracked_release.calibrate(epsilon=epsilon, delta=delta, **given_)
        assert noise_std == pytest.approx(
            0.06 * 0.9**12 / gaussian.mu_of(epsilon=epsilon, delta=delta), rel=1e-12
        )
        again = tracked_release.account(noise_std=noise_std, **given_)
        assert again.meets(epsilon=epsilon, delta=delta)


def test_one_step_of_noisy_sgd_is_one_step_and_a_release():
    one = {**GOOD, "steps": 1}
    assert tracked_release.account(**one).mu == pytest.approx(
        projected_noisy_sgd.account(**one).mu, rel=1e-12
    )


def test_the_terms_forbid_a_secret_state():
    terms = tracked_release.account(**GOOD, neighbours=Neighbours.REPLACEMENT).terms
    assert terms.neighbours is Neighbours.REPLACEMENT
    statements = [assumption.statement for assumption in terms.assumptions]
    assert "the noise-free weights were destroyed at release" in statements


@settings(max_examples=60, deadline=None)
@given(
    drift=st.floats(1e-6, 10.0),
    decay=st.floats(0.0, 0.2),
    steps=st.integers(0, 2000),
    factor=st.floats(1.01, 3.0),
)
def test_mu_is_monotone(drift, decay, steps, factor):
    def mu(**change):
        given_ = {**GOOD, "drift": drift, "weight_decay": decay, "steps": steps, **change}
        return tracked_release.account(**given_).mu

    assert mu(drift=drift * factor) >= mu()
    assert mu(steps=steps + 1) <= mu() * (1 + 1e-13)
    assert mu(noise_std=0.1 * factor) <= mu()


def test_an_underflowing_contraction_stays_a_bound():
    mu = tracked_release.account(**{**GOOD, "steps": 10**6}).mu
    assert 0 < mu < 1e-200


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("drift", -1.0),
        ("drift", math.inf),
        ("learning_rate", 10.0),
        ("weight_decay", math.nan),
        ("noise_std", 0.0),
        ("noise_std", -1.0),
        ("steps", -1),
        ("steps", 0.5),
        ("neighbours", "any_start"),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        tracked_release.account(**{**GOOD, name: bad})
    assert caught.value.name == name


@settings(max_examples=60, deadline=None)
@given(drift=st.floats(1e-6, 10.0), decay=st.floats(0.001, 0.2), noise=st.floats(1e-3, 1.0))
def test_the_steps_needed_are_the_fewest_that_meet_the_target(drift, decay, noise):
    job = {**GOOD, "drift": drift, "weight_decay": decay, "noise_std": noise}
    job.pop("steps", None)
    target = {"epsilon": 1.0, "delta": 1e-5}
    steps = tracked_release.steps_needed(**target, **job)
    assert tracked_release.account(**job, steps=steps).meets(**target)
    if steps:
        assert not tracked_release.account(**job, steps=steps - 1).meets(**target)


def test_no_step_is_needed_where_the_drift_allows_it():
    job = {**GOOD, "drift": 1e-4, "noise_std": 0.1}
    job.pop("steps", None)
    assert tracked_release.steps_needed(epsilon=1.0, delta=1e-5, **job) == 0


def test_without_weight_decay_steps_do_not_help():
    job = {**GOOD, "drift": 1.0, "noise_std": 0.1, "weight_decay": 0.0}
    job.pop("steps", None)
    with pytest.raises(CalibrationError, match="weight decay"):
        tracked_release.steps_needed(epsilon=1.0, delta=1e-5, **job)

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.accounting import gaussian, noisy_gd_convex, present_records
from app.accounting.noisy_chain import constant_mu
from app.accounting.published import chourasia_theorem_5_1
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError

BASE = {
    "learning_rate": 1.0,
    "weight_decay": 0.05,
    "smoothness": 0.25,
    "lipschitz": 1.0,
    "records": 1000,
}
GOOD = {**BASE, "noise_std": 0.01, "training_steps": 200, "unlearning_steps": 30}


def by_the_whole_history(training_steps, unlearning_steps, shift=0.002, noise_std=0.01):
    steps = training_steps + unlearning_steps
    return present_records.minorant_mu(
        start_distance=0.0,
        contractions=[0.95] * steps,
        shifts=[shift] * training_steps + [0.0] * unlearning_steps,
        noise_stds=[noise_std] * steps,
    )


def test_mu_in_closed_form():
    rate = mpmath.mpf("0.95")
    drift = rate**30 * mpmath.mpf("0.002") * (1 - rate**200) / (1 - rate)
    variance = mpmath.mpf("0.01") ** 2 * (1 - rate**460) / (1 - rate**2)
    truth = drift / mpmath.sqrt(variance)
    found = noisy_gd_convex.account(**GOOD).mu
    assert truth <= found <= truth * (1 + mpmath.mpf("1e-11"))


def test_the_closed_form_is_the_minorant_of_the_whole_history():
    for lengths in ((1, 0), (1, 5), (50, 0), (200, 30)):
        found = noisy_gd_convex.account(
            **{**GOOD, "training_steps": lengths[0], "unlearning_steps": lengths[1]}
        ).mu
        assert found == pytest.approx(by_the_whole_history(*lengths), rel=1e-10)


def test_never_worse_than_forgetting_the_noise_of_training():
    drift = 0.002 * (1 - 0.95**200) / 0.05
    alone = constant_mu(start_distance=drift, contraction=0.95, shift=0.0, noise_std=0.01, steps=30)
    assert noisy_gd_convex.account(**GOOD).mu <= alone


def test_sharper_than_the_papers_bound_at_every_length():
    for steps in (1, 10, 100, 200):
        theirs = chourasia_theorem_5_1.account(
            noise_scale=0.01 / math.sqrt(2), unlearning_steps=steps, **BASE
        )
        ours = noisy_gd_convex.account(
            **{**GOOD, "training_steps": 10**5, "unlearning_steps": steps}
        )
        assert ours.renyi(order=4.0) <= theirs.curve(4.0) / 1.9
        assert ours.epsilon(delta=1e-5) <= theirs.epsilon(delta=1e-5)


def test_present_records_in_closed_form():
    found = noisy_gd_convex.account_present(
        **BASE, noise_std=0.01, steps=100, neighbours=Neighbours.REPLACEMENT
    )
    rate = 0.95**100
    squared = (0.002 / 0.01) ** 2 * (1 - rate) * 1.95 / ((1 + rate) * 0.05)
    assert found.mu == pytest.approx(math.sqrt(squared), rel=1e-12)


def test_drift_grows_with_records_and_halves_with_zero_out():
    one = noisy_gd_convex.account(**GOOD).mu
    assert noisy_gd_convex.account(**GOOD, forgotten=3).mu == pytest.approx(3 * one, rel=1e-12)
    half = noisy_gd_convex.account(**GOOD, neighbours=Neighbours.ZERO_OUT).mu
    assert half == pytest.approx(one / 2, rel=1e-12)


def test_calibrated_noise_meets_its_target_and_is_smallest():
    given_ = {key: value for key, value in GOOD.items() if key != "noise_std"}
    for epsilon, delta in ((1.0, 1e-5), (1e-3, 1e-15), (50.0, 1e-15)):
        noise_std = noisy_gd_convex.calibrate(epsilon=epsilon, delta=delta, **given_)
        found = noisy_gd_convex.account(noise_std=noise_std, **given_)
        assert found.meets(epsilon=epsilon, delta=delta)
        assert found.mu == pytest.approx(gaussian.mu_of(epsilon=epsilon, delta=delta), rel=1e-11)


def test_the_odometer_counts_what_account_predicts():
    odometer = noisy_gd_convex.Odometer(**BASE, noise_std=0.01, training_steps=200)
    for _ in range(30):
        odometer.step(0.01)
    assert odometer.steps == 30
    assert odometer.mu == pytest.approx(noisy_gd_convex.account(**GOOD).mu, rel=1e-10)
    assert odometer.guarantee().mu == odometer.mu


@settings(max_examples=60, deadline=None)
@given(
    training=st.integers(1, 3000),
    unlearning=st.integers(0, 500),
    decay=st.sampled_from([0.0, 1e-6, 0.05, 0.5]),
    factor=st.floats(1.01, 2.0),
)
def test_mu_is_monotone(training, unlearning, decay, factor):
    def mu(**change):
        given_ = {
            **GOOD,
            "weight_decay": decay,
            "training_steps": training,
            "unlearning_steps": unlearning,
            **change,
        }
        return noisy_gd_convex.account(**given_).mu

    slack = 1 + 1e-11
    assert mu(training_steps=training + 1) * slack >= mu()
    assert mu(unlearning_steps=unlearning + 1) <= mu() * slack
    assert mu(noise_std=0.01 * factor) <= mu() * slack
    assert mu(lipschitz=factor) * slack >= mu()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 8.0),
        ("learning_rate", math.nan),
        ("weight_decay", -1.0),
        ("smoothness", 0.0),
        ("lipschitz", math.inf),
        ("records", 0),
        ("noise_std", 0.0),
        ("training_steps", 0),
        ("unlearning_steps", -1),
        ("forgotten", 0),
        ("neighbours", "add_remove"),
    ],
)
def test_refuses_parameters_outside_their_range(name, bad):
    with pytest.raises(ParameterError) as caught:
        noisy_gd_convex.account(**{**GOOD, name: bad})
    assert caught.value.name == name


def test_adaptive_requests_pay_for_every_earlier_release():
    given_ = {**GOOD, "training_steps": 30, "unlearning_steps": 20, "forgotten": 2}
    fixed = noisy_gd_convex.account(**given_)
    shown = noisy_gd_convex.account(**given_, earlier_releases=3)
    of_one_release = {
        k: v
        for k, v in given_.items()
        if k not in ("training_steps", "unlearning_steps", "forgotten")
    }
    present = noisy_gd_convex.account_present(**of_one_release, steps=30, group=2)
    assert shown.mu == pytest.approx(math.sqrt(fixed.mu**2 + 3 * present.mu**2), rel=1e-9)
    assert shown.mu >= math.sqrt(fixed.mu**2 + 3 * present.mu**2)
    assert shown.terms.adaptive
    assert not fixed.terms.adaptive


def test_noise_for_adaptive_requests_meets_the_target():
    given_ = {k: v for k, v in GOOD.items() if k != "noise_std"}
    given_ |= {"training_steps": 30, "unlearning_steps": 20, "earlier_releases": 4}
    noise_std = noisy_gd_convex.calibrate(epsilon=1.0, delta=1e-5, **given_)
    found = noisy_gd_convex.account(**given_, noise_std=noise_std)
    assert found.meets(epsilon=1.0, delta=1e-5)
    assert found.epsilon(delta=1e-5) == pytest.approx(1.0, rel=1e-9)

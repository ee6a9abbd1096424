import math

import dp_accounting
import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from app.accounting import gaussian
from app.domain.errors import ParameterError

mpmath.mp.dps = 60
EXTREMES = [(1e-3, 1e-15), (50.0, 1e-15), (1e-3, 0.1), (50.0, 0.1), (1.0, 1e-15), (0.01, 1e-5)]


def true_delta(mu, epsilon):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    upper, lower = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return mpmath.ncdf(upper) - mpmath.exp(epsilon) * mpmath.ncdf(lower)


def test_mu_of_reference_targets():
    assert gaussian.mu_of(epsilon=1.0, delta=1e-5) == pytest.approx(0.268051123211, abs=5e-13)
    assert gaussian.mu_of(epsilon=0.1, delta=1e-5) == pytest.approx(0.032520784056, abs=5e-13)
    assert gaussian.mu_of(epsilon=8.0, delta=1e-5) == pytest.approx(1.666030597846, abs=5e-13)


def test_epsilon_of_reference_values():
    assert gaussian.epsilon_of(mu=1.0, delta=1e-5) == pytest.approx(4.377178095681, abs=6e-13)
    assert gaussian.epsilon_of(mu=0.5, delta=1e-5) == pytest.approx(1.993091404415, abs=6e-13)
    assert gaussian.epsilon_of(mu=2.0, delta=1e-5) == pytest.approx(9.997256146434, abs=6e-13)


def test_delta_is_rounded_up_and_exact_against_sixty_digits():
    for mu in (1e-4, 1e-2, 0.268, 1.0, 3.7, 20.0):
        for multiple in (1e-3, 0.1, 0.5, 1.0, 3.0, 7.0):
            epsilon = mu * multiple
            truth = true_delta(mu, epsilon)
            found = mpmath.mpf(gaussian.delta_of(mu=mu, epsilon=epsilon))
            assert truth <= found <= truth * (1 + mpmath.mpf("2e-12"))


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (1.9247106547243835e-63, 4.3963786905049475e-62),
        (5.082456998812047e-136, 1.0599077281574366e-134),
        (4.9150263381649995e-188, 1.0031377113379714e-186),
        (2252.4076168878364, 2541612.4706674465),
        (65364.29544503105, 2136255887.9125874),
    ],
)
def test_delta_is_rounded_up_at_extremes(mu, epsilon):
    found = gaussian.delta_of(mu=mu, epsilon=epsilon)
    with mpmath.workdps(700):
        assert true_delta(mu, epsilon) <= mpmath.mpf(found)


def test_epsilon_is_found_where_delta_is_almost_that_of_none():
    for mu in (4.386608262787163, 0.29807282400736883, 0.038149031024212514):
        delta = math.nextafter(gaussian.advantage_of(mu=mu), 0)
        assert 0 < gaussian.epsilon_of(mu=mu, delta=delta) < 1e-9


def test_delta_agrees_with_dp_accounting():
    loss = dp_accounting.pld.privacy_loss_mechanism.GaussianPrivacyLoss(2.0)
    assert gaussian.delta_of(mu=0.5, epsilon=1.0) == pytest.approx(
        loss.get_delta_for_epsilon(1.0), rel=1e-11
    )


def test_epsilon_agrees_with_dp_accounting():
    for sigma, delta in ((1.0, 1e-5), (0.5, 1e-9), (4.0, 1e-3)):
        oracle = dp_accounting.get_epsilon_gaussian(sigma, delta)
        assert gaussian.epsilon_of(mu=1 / sigma, delta=delta) == pytest.approx(oracle, rel=1e-8)


def test_mu_agrees_with_dp_accounting():
    sigma = dp_accounting.get_sigma_gaussian(1.0, 1e-5)
    assert gaussian.mu_of(epsilon=1.0, delta=1e-5) == pytest.approx(1 / sigma, rel=1e-7)


def test_advantage_is_the_total_variation_distance():
    assert gaussian.advantage_of(mu=1.0) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-12)
    assert gaussian.advantage_of(mu=1e-6) == pytest.approx(1e-6 / math.sqrt(2 * math.pi), rel=1e-9)


def test_surviving_information_in_bits():
    bits = [
        gaussian.surviving_information_bits(mu=gaussian.mu_of(epsilon=epsilon, delta=1e-5))
        for epsilon in (1.0, 8.0)
    ]
    assert bits[0] == pytest.approx(0.052, abs=5e-4)
    assert bits[1] == pytest.approx(2.0, abs=5e-3)
    assert gaussian.surviving_information_bits(mu=1.0) == pytest.approx(0.5 / math.log(2), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), EXTREMES)
def test_extreme_targets_round_trip_on_the_safe_side(epsilon, delta):
    mu = gaussian.mu_of(epsilon=epsilon, delta=delta)
    assert gaussian.delta_of(mu=mu, epsilon=epsilon) <= delta
    assert true_delta(mu, epsilon) == pytest.approx(delta, rel=1e-11)
    assert gaussian.epsilon_of(mu=mu, delta=delta) == pytest.approx(epsilon, rel=1e-10)


def test_epsilon_of_is_never_below_the_truth():
    for mu, delta in ((0.3, 1e-5), (10.0, 0.9), (1e-5, 1e-7), (30.0, 0.5), (2.0, 1e-15)):
        epsilon = gaussian.epsilon_of(mu=mu, delta=delta)
        assert true_delta(mu, epsilon) <= delta


def test_numbers_too_small_to_evaluate_stay_upper_bounds():
    assert 0 < gaussian.delta_of(mu=1e-280, epsilon=1.0) < 1e-300
    assert gaussian.delta_of(mu=1e-3, epsilon=5.0) > 0
    assert gaussian.epsilon_of(mu=1e-280, delta=1e-15) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 20.0), st.floats(1e-3, 20.0), st.floats(1e-12, 0.5), st.floats(1.001, 3.0))
def test_conversions_are_monotone(mu, epsilon, delta, factor):
    assert gaussian.delta_of(mu=mu * factor, epsilon=epsilon) >= gaussian.delta_of(
        mu=mu, epsilon=epsilon
    )
    assert gaussian.delta_of(mu=mu, epsilon=epsilon * factor) <= gaussian.delta_of(
        mu=mu, epsilon=epsilon
    )
    assert gaussian.epsilon_of(mu=mu * factor, delta=delta) >= gaussian.epsilon_of(
        mu=mu, delta=delta
    )
    assert gaussian.mu_of(epsilon=epsilon * factor, delta=delta) > gaussian.mu_of(
        epsilon=epsilon, delta=delta
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, True, "1"])
def test_refuses_a_mu_that_is_not_a_positive_number(bad):
    with pytest.raises(ParameterError) as caught:
        gaussian.delta_of(mu=bad, epsilon=1.0)
    assert caught.value.name == "mu"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9, 0.0, 1.0, 2.0])
def test_refuses_a_delta_outside_its_range(bad):
    for call in (gaussian.epsilon_of, gaussian.mu_of):
        with pytest.raises(ParameterError) as caught:
            call(**{"mu" if call is gaussian.epsilon_of else "epsilon": 1.0, "delta": bad})
        assert caught.value.name == "delta"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_refuses_an_epsilon_outside_its_range(bad):
    with pytest.raises(ParameterError) as caught:
        gaussian.mu_of(epsilon=bad, delta=1e-5)
    assert caught.value.name == "epsilon"


@pytest.mark.parametrize("epsilon", [1e-310, 2.3e-308, 1e-300])
def test_an_epsilon_that_is_hardly_a_number_still_has_a_mu(epsilon: float) -> None:
    mu = gaussian.mu_of(epsilon=epsilon, delta=1e-5)
    assert gaussian.delta_of(mu=mu, epsilon=epsilon) <= 1e-5
    assert mu == pytest.approx(gaussian.mu_of(epsilon=1e-12, delta=1e-5), rel=1e-6)

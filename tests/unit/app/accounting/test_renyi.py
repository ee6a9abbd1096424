import math

import mpmath
import pytest

from app.accounting import gaussian, renyi
from app.domain.errors import CalibrationError, ParameterError


def linear(factor):
    return lambda order: order * factor


def best_over_a_fine_grid(factor, delta):
    orders = [1 + math.exp(point / 500) for point in range(-2000, 5000)]
    mironov = min(order * factor - math.log(delta) / (order - 1) for order in orders)
    balle = min(
        order * factor + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order in orders
    )
    return mironov, balle


def test_linear_curve_matches_both_formulas_at_their_best_order():
    for factor in (1e-4, 0.0359, 1.0):
        mironov, balle = best_over_a_fine_grid(factor, 1e-5)
        found = renyi.best_epsilon(curve=linear(factor), delta=1e-5)
        assert found == pytest.approx(min(mironov, balle), rel=1e-6)
        closed = factor + 2 * math.sqrt(factor * math.log(1e5))
        assert mironov == pytest.approx(closed, rel=1e-5)


def test_log_delta_inverts_epsilon():
    for factor in (1e-3, 0.1, 2.0):
        epsilon = renyi.best_epsilon(curve=linear(factor), delta=1e-6)
        found = renyi.best_log_delta(curve=linear(factor), epsilon=epsilon)
        assert found == pytest.approx(math.log(1e-6), rel=1e-7)


def test_is_never_better_than_the_exact_gaussian_and_within_a_quarter():
    for mu in (0.0325, 0.268, 1.0, 3.0):
        exact = gaussian.epsilon_of(mu=mu, delta=1e-5)
        found = renyi.best_epsilon(curve=linear(mu * mu / 2), delta=1e-5)
        assert exact <= found <= 1.25 * exact


def test_the_truth_of_a_gaussian_pair_bounds_the_conversion_from_below():
    found = renyi.best_log_delta(curve=linear(0.5), epsilon=2.0)
    assert math.exp(found) >= gaussian.delta_of(mu=1.0, epsilon=2.0)


def test_advantage_is_the_best_of_both_bounds_over_orders():
    factor = 0.02
    orders = [1 + math.exp(point / 100) for point in range(-1300, 600)]
    pinsker = min(math.sqrt(2 * order * factor) for order in orders)
    test = min(
        order
        / (order - 1)
        * math.exp(order * factor * (order - 1) / order)
        * (2 * (order - 1)) ** (1 / order)
        - 1
        for order in orders
    )
    found = renyi.advantage(curve=linear(factor))
    assert found == pytest.approx(min(pinsker, test, 1.0), rel=1e-4)
    assert found >= gaussian.advantage_of(mu=math.sqrt(2 * factor))
    assert renyi.advantage(curve=linear(50.0)) == 1.0


def test_a_limited_order_never_helps():
    free = renyi.best_epsilon(curve=linear(0.01), delta=1e-5)
    limited = renyi.best_epsilon(curve=linear(0.01), delta=1e-5, highest_order=5.0)
    assert limited > free


def test_refuses_a_curve_without_any_finite_order():
    with pytest.raises(CalibrationError):
        renyi.best_epsilon(curve=lambda _: math.inf, delta=1e-5)
    with pytest.raises(CalibrationError):
        renyi.best_epsilon(curve=lambda _: math.nan, delta=1e-5)


@pytest.mark.parametrize("bad", [math.nan, 0.0, 1.0, math.inf])
def test_refuses_a_delta_outside_its_range(bad):
    with pytest.raises(ParameterError):
        renyi.best_epsilon(curve=linear(1.0), delta=bad)


def test_balle_formula_holds_for_a_known_pair():
    # Canonne, Kamath & Steinke 2020, Proposition 12, checked on the exact Renyi curve of Gaussians.
    mu, epsilon = mpmath.mpf(1), mpmath.mpf(3)
    truth = mpmath.ncdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * mpmath.ncdf(
        -epsilon / mu - mu / 2
    )
    assert math.exp(renyi.best_log_delta(curve=linear(0.5), epsilon=3.0)) >= truth

"""The numerical methods against sixty digits."""

import math

import mpmath
import pytest

from app.accounting.numerics import erfcx, integral, root_between
from app.domain.errors import CalibrationError

mpmath.mp.dps = 60


def test_the_scaled_error_function_against_sixty_digits() -> None:
    points = [*(i / 64 for i in range(640)), 2.9999999999999996, 3.0, 26.5, 1e2, 1e4, 1e8, 1e150]
    for x in points:
        exact = mpmath.mpf(x)
        if x > 1e3:  # the next term of the series is below 1e-17
            truth = 1 / (exact * mpmath.sqrt(mpmath.pi)) * (1 - 1 / (2 * exact**2))
        else:
            truth = mpmath.exp(exact**2) * mpmath.erfc(exact)
        assert abs(erfcx(x) / truth - 1) < 2e-15


@pytest.mark.parametrize("rate", [0.0, 1.0, -30.0, 60.0])
def test_an_integral_is_known_with_its_error(rate: float) -> None:
    found, doubt = integral(lambda x: math.exp(rate * x), -0.5, 0.5)
    truth = 1.0 if rate == 0 else 2 * math.sinh(rate / 2) / rate
    assert found == pytest.approx(truth, rel=1e-14)
    assert doubt < 1e-12 * truth
    _, far = integral(lambda x: abs(x - 0.123), 0.0, 1.0)  # not smooth: said
    assert far > 1e-7


@pytest.mark.parametrize(
    ("function", "low", "high", "root"),
    [
        (lambda x: x - 0.25, 0.0, 1.0, 0.25),
        (lambda x: 0.25 - x, 1.0, 0.0, 0.25),
        (lambda x: x**9, -1.0, 2.0, 0.0),
        (lambda x: math.exp(x) - 1e5, -700.0, 700.0, math.log(1e5)),
        (lambda x: math.copysign(1.0, x - 1 / 3), 0.0, 1.0, 1 / 3),
        (lambda x: x, 0.0, 1.0, 0.0),
    ],
)
def test_a_root_is_found_to_the_last_digits(function, low, high, root) -> None:
    assert root_between(function, low, high) == pytest.approx(root, rel=1e-13, abs=1e-9)


@pytest.mark.parametrize("function", [lambda _: 1.0, lambda _: math.nan, lambda x: x * x + 1e-300])
def test_without_a_change_of_sign_there_is_no_answer(function) -> None:
    with pytest.raises(CalibrationError):
        root_between(function, -1.0, 1.0)

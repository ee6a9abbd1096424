import math

import pytest

from app.accounting.search import smallest_noise, smallest_noise_by_secant
from app.domain.errors import CalibrationError


def test_ends_just_above_the_threshold():
    for threshold in (1e-6, 0.3, 7.0, 1e5):
        found = smallest_noise(lambda noise, at=threshold: noise >= at, scale=1.0)
        assert threshold <= found <= threshold * (1 + 1e-9)


def test_gives_up_where_nothing_or_everything_passes():
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: False, scale=1.0)
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: True, scale=1.0)


@pytest.mark.parametrize("threshold", [1e-6, 0.3, 7.0, 1e5])
@pytest.mark.parametrize("power", [0.3, 1.0, 2.0])
def test_secants_end_just_above_the_threshold_in_few_evaluations(threshold, power):
    tried = []

    def excess(noise):
        tried.append(noise)
        return math.asinh(threshold / noise) ** power - math.asinh(1.0) ** power

    found = smallest_noise_by_secant(excess, scale=1.0, relative_width=1e-3)
    assert excess(found) <= 0
    assert threshold * (1 - 1e-12) <= found <= threshold * (1 + 1e-3)
    assert len(tried) <= 30


def test_secants_end_on_the_safe_side_of_a_jump():
    found = smallest_noise_by_secant(
        lambda noise: -1.0 if noise >= 3.0 else math.inf, scale=1.0, relative_width=1e-3
    )
    assert 3.0 <= found <= 3.0 * (1 + 1e-3)


def test_secants_give_up_where_nothing_or_everything_passes():
    for excess in (1.0, math.inf, -1.0):
        with pytest.raises(CalibrationError):
            smallest_noise_by_secant(lambda _, at=excess: at, scale=1.0, relative_width=1e-3)

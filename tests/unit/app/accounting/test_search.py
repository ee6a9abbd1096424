import math

import pytest

from app.accounting import gaussian, output_perturbation
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.search import (
    largest,
    meeting,
    smallest,
    smallest_noise,
    smallest_noise_by_secant,
)
from app.domain.errors import CalibrationError, ParameterError


def test_ends_just_above_the_threshold():
    for threshold in (1e-6, 0.3, 7.0, 1e5):
        found = smallest_noise(lambda noise, at=threshold: noise >= at, scale=1.0)
        assert threshold <= found <= threshold * (1 + 1e-9)


def test_gives_up_where_nothing_or_everything_passes():
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: False, scale=1.0)
    with pytest.raises(CalibrationError):
        smallest_noise(lambda _: True, scale=1.0)


@pytest.mark.parametrize("threshold", [0.0, 1e-6, 0.3, 7.0])
def test_the_smallest_number_is_rounded_up(threshold):
    found = smallest(lambda number: number >= threshold, highest=10.0, width=1e-9)
    assert threshold <= found <= threshold * (1 + 1e-9)


def test_noise_that_an_accountant_refuses_as_too_little_does_not_meet_a_target():
    def account(noise):
        if noise < 1:
            raise ParameterError("noise_std", "at least 1")
        if noise < 2:
            raise CalibrationError("no finite bound")
        if noise > 1e6:
            raise ParameterError("steps", "fewer")
        return GaussianGuarantee(terms=output_perturbation.TERMS, mu=3 / noise)

    target = {"epsilon": 1.0, "delta": 1e-5}
    meets = meeting(account, **target)
    assert [meets(noise) for noise in (0.5, 1.5, 2.5, 100.0)] == [False, False, False, True]
    with pytest.raises(ParameterError, match="steps"):
        meets(1e7)
    found = smallest_noise(meets, scale=1.0)
    assert account(found).meets(**target)
    assert found == pytest.approx(3 / gaussian.mu_of(**target), rel=1e-9)


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


@pytest.mark.parametrize("guess", [0, 1, 7, 200, 10**6])
@pytest.mark.parametrize("threshold", [0, 1, 2, 6, 7, 8, 63, 199, 200, 500])
def test_the_largest_whole_number_wherever_the_search_begins(threshold, guess):
    asked = []

    def meets(number):
        asked.append(number)
        return number <= threshold

    assert largest(meets, most=200, guess=guess) == min(threshold, 200)
    assert len(asked) == len(set(asked)) <= 16
    assert all(1 <= number <= 200 for number in asked)

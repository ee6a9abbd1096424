import math
from fractions import Fraction

import pytest

from app.accounting.histories import strong_convexity
from app.accounting.terms import Neighbours
from app.domain.errors import ParameterError

GOOD = {"learning_rate": 2.0, "weight_decay": 0.1, "smoothness": 0.25}


def test_contraction_is_one_minus_the_decay_rounded_up():
    found = strong_convexity.contraction(**GOOD)
    assert Fraction(found) >= 1 - Fraction(2.0) * Fraction(0.1)
    assert found == pytest.approx(0.8, abs=1e-15)


def test_a_step_of_exactly_the_bound_is_allowed():
    rate = strong_convexity.largest_learning_rate(weight_decay=0.1, smoothness=0.25)
    assert rate == pytest.approx(2 / 0.45)
    assert strong_convexity.contraction(**{**GOOD, "learning_rate": rate}) < 1
    assert strong_convexity.contraction(**{**GOOD, "weight_decay": 0.0}) == 1.0


def test_shift_of_one_record_by_neighbouring_relation():
    given = {"learning_rate": 2.0, "lipschitz": 3.0, "batch_size": 4}
    for relation, shift in ((Neighbours.ZERO_OUT, 1.5), (Neighbours.REPLACEMENT, 3.0)):
        found = strong_convexity.gradient_shift(neighbours=relation, **given)
        assert shift <= found <= shift * (1 + 1e-14)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learning_rate", 5.0),
        ("learning_rate", 4.4445),
        ("learning_rate", math.nan),
        ("weight_decay", -0.1),
        ("smoothness", 0.0),
        ("smoothness", math.inf),
    ],
)
def test_refuses_a_step_size_above_its_bound_and_other_nonsense(name, bad):
    with pytest.raises(ParameterError) as caught:
        strong_convexity.contraction(**{**GOOD, name: bad})
    assert caught.value.name == name


def test_a_step_size_above_its_bound_by_one_rounding_is_refused():
    rate = 2 / 0.45 * (1 - 1e-14)
    while Fraction(rate) * (Fraction(0.25) + 2 * Fraction(0.1)) <= 2:
        rate = math.nextafter(rate, math.inf)
    with pytest.raises(ParameterError):
        strong_convexity.contraction(**{**GOOD, "learning_rate": rate})
    below = math.nextafter(rate, 0)
    assert strong_convexity.contraction(**{**GOOD, "learning_rate": below}) < 1


@pytest.mark.parametrize("bad", [Neighbours.ANY_START, Neighbours.ADD_REMOVE, "other"])
def test_refuses_a_relation_without_drift(bad):
    with pytest.raises(ParameterError) as caught:
        strong_convexity.factor(bad)
    assert caught.value.name == "neighbours"


def test_up_to_the_largest_step_size_the_slowest_direction_is_the_flattest():
    """At a quadratic loss of the stated curvature, and at one without any, the map contracts."""
    rate = strong_convexity.largest_learning_rate(weight_decay=0.1, smoothness=0.25)
    factors = [abs(1 - rate * (curvature + 0.1)) for curvature in (0.0, 0.1, 0.25)]
    assert max(factors) <= strong_convexity.contraction(**{**GOOD, "learning_rate": rate})


@pytest.mark.parametrize("rate", [2.8572, 3.0])
def test_the_papers_own_condition_is_stricter(rate):
    given = {**GOOD, "learning_rate": rate}
    assert strong_convexity.contraction(**given) < 1
    with pytest.raises(ParameterError) as caught:
        strong_convexity.papers_contraction(**given)
    assert caught.value.name == "learning_rate"
    assert strong_convexity.papers_contraction(**GOOD) == strong_convexity.contraction(**GOOD)

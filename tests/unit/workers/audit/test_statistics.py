"""The statistics of audits, against exact sums, SciPy, and simulated services."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from app.domain.errors import InvalidInputError
from workers.audit.statistics import (
    epsilon_lower_bound,
    fewest_contradicting,
    log_binomial_tails,
    p_value,
    right_guesses,
)

CLAIMS = st.tuples(st.floats(0, 20), st.floats(0, 0.2))


@pytest.mark.parametrize("guesses", [1, 2, 5, 13])
def test_the_tails_are_three_times_the_sum_over_all_outcomes_and_rounded_up(guesses: int) -> None:
    outcomes = [bin(coins).count("1") for coins in range(2**guesses)]
    for right in range(guesses + 1):
        exact = min(Fraction(1), 3 * Fraction(sum(n >= right for n in outcomes), 2**guesses))
        found = math.exp(log_binomial_tails(guesses, right))
        assert float(exact) <= found <= float(exact) * (1 + 1e-8) or found == exact == 1


@pytest.mark.parametrize(("guesses", "right"), [(100, 60), (1000, 600), (10_000, 5_321)])
def test_the_tails_agree_with_an_independent_library(guesses: int, right: int) -> None:
    expected = binom.logsf(right - 1, guesses, 0.5) + math.log(3)
    assert log_binomial_tails(guesses, right) == pytest.approx(expected, abs=1e-7)


def test_a_tail_below_the_range_of_floats_has_a_logarithm() -> None:
    assert log_binomial_tails(5000, 5000) == pytest.approx(
        math.log(3) - 5000 * math.log(2), abs=1e-8
    )


@pytest.mark.parametrize(("right", "epsilon"), [(120, 1.77), (80, 0.0), (140, 14.61)])
def test_known_bounds_of_200_guesses(right: int, epsilon: float) -> None:
    found = epsilon_lower_bound(guesses=200, right=right, delta=1e-5, confidence=0.95)
    assert found == pytest.approx(epsilon, abs=0.02)


@given(st.integers(1, 300), st.data(), CLAIMS, st.floats(0.5, 0.999))
def test_the_bound_and_the_p_value_reject_the_same_claims(guesses, data, claim, confidence) -> None:
    right = data.draw(st.integers(0, guesses))
    epsilon, delta = claim
    bound = epsilon_lower_bound(guesses=guesses, right=right, delta=delta, confidence=confidence)
    p = p_value(guesses=guesses, right=right, epsilon=epsilon, delta=delta)
    if epsilon < bound - 1e-6:
        assert p < 1 - confidence
    if epsilon > bound + 1e-6:
        assert p >= 1 - confidence - 1e-12


@given(st.integers(2, 300), st.data(), CLAIMS, st.floats(0.5, 0.99))
def test_more_right_guesses_and_less_confidence_say_more(guesses, data, claim, confidence) -> None:
    right = data.draw(st.integers(guesses // 2, guesses - 1))
    epsilon, delta = claim

    def bound(right: int, delta: float, confidence: float) -> float:
        return epsilon_lower_bound(guesses=guesses, right=right, delta=delta, confidence=confidence)

    assert bound(right + 1, delta, confidence) >= bound(right, delta, confidence) - 1e-8
    assert bound(right, delta / 2, confidence) >= bound(right, delta, confidence)
    assert bound(right, delta, confidence) >= bound(right, delta, (1 + confidence) / 2)
    more = p_value(guesses=guesses, right=right, epsilon=epsilon + 1, delta=delta)
    assert more >= p_value(guesses=guesses, right=right, epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_fewest_that_contradict_are_the_fewest(epsilon: float, delta: float) -> None:
    claim = {"epsilon": epsilon, "delta": delta}
    for guesses in (1, 4, 5, 40, 101):
        rejecting = [
            right
            for right in range(guesses // 2, guesses + 1)
            if p_value(guesses=guesses, right=right, **claim) < 1 - 0.95
        ]
        found = fewest_contradicting(guesses=guesses, confidence=0.95, **claim)
        assert found == (min(rejecting) if rejecting else None)


def test_guesses_are_of_the_surest_canaries() -> None:
    scores = [(0.0, 3.0), (2.0, 0.0), (0.0, 0.1), (-5.0, -5.2)]
    assert right_guesses([scores], [1, 0, 0, 1], 2) == 2
    assert right_guesses([scores], [0, 0, 0, 1], 2) == 1
    assert right_guesses([scores], [1, 0, 0, 1], 4) == 2
    assert right_guesses([scores], [1, 0, 1, 0], 4) == 4


def test_the_attack_that_is_right_more_often_counts() -> None:
    first, second = [(0.0, 3.0), (2.0, 0.0), (0.0, 1.0)], [(0.0, 1.0), (0.0, 2.0), (3.0, 0.0)]
    assert right_guesses([first, second], [1, 0, 1], 3) == 3
    assert right_guesses([first, second], [1, 1, 0], 3) == 3
    assert right_guesses([first, second], [0, 1, 0], 3) == 2


def test_scores_that_are_all_alike_are_right_by_chance() -> None:
    flips = random.Random(4)
    rights = [
        right_guesses([[(0.0, 0.0)] * 50], [flips.randrange(2) for _ in range(50)], 25)
        for _ in range(400)
    ]
    assert sum(rights) / len(rights) == pytest.approx(12.5, abs=0.9)  # 5 standard errors


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_a_service_as_bad_as_it_says_is_rejected_as_rarely_as_stated(epsilon: float) -> None:
    """The worst service within (ε, 0): it is right as often as the claim allows.

    It tilts the chance that one of three attacks is right so often by e^±ε upwards.
    """
    guesses, confidence = 40, 0.9
    chances = [math.comb(guesses, right) / 2**guesses for right in range(guesses + 1)]
    needed = fewest_contradicting(
        guesses=guesses, epsilon=epsilon, delta=0.0, confidence=confidence
    )
    assert needed is not None
    tail = 3 * sum(chances[needed:])
    worst = min(math.exp(epsilon) * tail, 1 - math.exp(-epsilon) * (1 - tail))
    assert worst <= (1 - confidence) * (1 + 1e-6)
    below = 3 * sum(chances[needed - 1 :])
    assert math.exp(epsilon) * below > 1 - confidence  # one fewer would reject too often


def test_a_service_worse_than_it_says_is_rejected() -> None:
    """Each canary's coin is known with probability e^ε / (1 + e^ε): joint ε = 40 · 3."""
    flips = random.Random(7)
    rejected = 0
    for _ in range(200):
        right = sum(flips.random() < math.exp(3) / (1 + math.exp(3)) for _ in range(40))
        rejected += p_value(guesses=40, right=right, epsilon=3, delta=1e-5) < 0.05
    assert rejected >= 198


@pytest.mark.parametrize(("guesses", "right"), [(10, 11), (10, -1), (100_001, 0)])
def test_impossible_numbers_are_refused(guesses: int, right: int) -> None:
    with pytest.raises(InvalidInputError):
        log_binomial_tails(guesses, right)


@pytest.mark.parametrize(("canaries", "coins", "guesses"), [(2, 3, 1), (2, 2, 3), (2, 2, 0)])
def test_guesses_need_their_canaries(canaries: int, coins: int, guesses: int) -> None:
    with pytest.raises(InvalidInputError):
        right_guesses([[(0.0, 1.0)] * canaries], [1] * coins, guesses)

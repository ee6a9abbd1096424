"""What right guesses of coins say of a claim of (ε, δ): pure functions, no library.

The auditor flips a fair coin for each canary and pushes one of its two contents. In the world that
a certificate refers to, none of the canaries was there, so the release does not depend on the
coins, and of k guesses made from it the number of right ones is Binomial(k, ½). The certificate
speaks of all forgotten records together. So in the real world, for every t,

    P(the best of three attacks is right ≥ t) ≤ e^ε · 3 P(Binomial(k, ½) ≥ t) + δ

without a factor for the number of canaries. k is fixed before the scores are seen. That
there are three costs ln 3 of ε.
"""

import math
from collections.abc import Sequence
from typing import Final

from app.domain.errors import InvalidInputError

ATTACKS: Final = 3
_LOG_ROUNDING: Final = 1e-9
"""Added to a logarithm of a probability: more than float64 loses on the way, for any k here."""
MOST_GUESSES: Final = 100_000


def log_binomial_tails(guesses: int, right: int) -> float:
    """Return ln 3 P(Binomial(guesses, ½) ≥ right), a tail for each attack, rounded up; at most 0.

    Raises:
        InvalidInputError: there are not 0 to ``guesses`` right ones, or too many guesses.
    """
    if not 0 <= right <= guesses <= MOST_GUESSES:
        raise InvalidInputError(f"of 0 to {MOST_GUESSES:,} guesses, 0 to all may be right")
    term = total = math.comb(guesses, right)
    for successes in range(right, guesses):
        term = term * (guesses - successes) // (successes + 1)
        total += term
    return min(0.0, math.log(ATTACKS * total) - guesses * math.log(2) + _LOG_ROUNDING)


def p_value(*, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound of the probability of so many right guesses if a claim is true."""
    exponent = epsilon + log_binomial_tails(guesses, right)
    return min(1.0, (math.exp(exponent) if exponent < 0 else 1.0) + delta)


def epsilon_lower_bound(*, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the least ε that is not rejected, together with δ, at a confidence; 0 if none is."""
    left = (1 - confidence) - delta
    if left <= 0:
        return 0.0
    return max(0.0, math.log(left) - log_binomial_tails(guesses, right) - _LOG_ROUNDING)


def fewest_contradicting(
    *, guesses: int, epsilon: float, delta: float, confidence: float
) -> int | None:
    """Return how many right guesses of one attack reject a claim; None if all would not."""

    def rejects(right: int) -> bool:
        return p_value(guesses=guesses, right=right, epsilon=epsilon, delta=delta) < 1 - confidence

    if not rejects(guesses):
        return None
    low, high = guesses // 2, guesses  # the tail falls with the number of right ones
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rejects(middle) else (middle + 1, high)
    return low


def right_guesses(
    attacks: Sequence[Sequence[Sequence[float]]], coins: Sequence[int], guesses: int
) -> int:
    """Guess the coins of the canaries whose two contents differ most; count those that are right.

    Args:
        attacks: by each, scores of both contents of each canary, 0 and 1; a larger one says that
            this was learned. They must not depend on the coins but through the release.
        coins: which content was pushed.
        guesses: how many coins to guess, fixed beforehand.

    Returns:
        those of the attack that has most.

    Raises:
        InvalidInputError: the lengths differ, or there are fewer canaries than guesses.
    """
    if not {len(each) for each in attacks} == {len(coins)} or not len(coins) >= guesses >= 1:
        raise InvalidInputError("an audit needs a coin for each canary, and 1 to as many guesses")

    def right(scores: Sequence[Sequence[float]]) -> int:
        differences = [second - first for first, second in scores]
        surest = sorted(range(len(coins)), key=lambda each: -abs(differences[each]))[:guesses]
        return sum((differences[each] > 0) == (coins[each] == 1) for each in surest)

    return max(map(right, attacks))

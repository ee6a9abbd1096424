"""Koloskova et al. 2025, Theorem 4.1: gradient clipping in closed form.

    lambda = 0:             sigma^2 = 9 log(1/delta)/(eps^2 T) (C0 + C1 gamma T)^2
    1/2 < gamma lambda < 1: sigma^2 = 72 gamma lambda log(1/delta)/eps^2 (C0 (1 - gamma lambda)^T
                                      + C1/lambda)^2

The theorem is stated for eps < 3 log(1/delta). Its first case does not hold that far: the noise
gives mu = 2 eps/(3 sqrt(log(1/delta))), whose true epsilon exceeds eps from 0.95 log(1/delta) on at
delta = 1e-5, from 0.55 at 1e-15, and from 0.257 as delta goes to 0. Mironov's conversion proves it
up to 0.257 log(1/delta) for every delta, the limit here. The second case gives
mu <= eps/(3 sqrt(log(1/delta))) and holds as stated.

Guarantee: one point (epsilon, delta). Neighbouring relation: any two starts. Assumptions: as
``gradient_clipping``.
"""

import math

from app.accounting import gradient_clipping
from app.accounting.guarantees import PointGuarantee
from app.accounting.terms import Terms
from app.domain.checks import (
    require_delta,
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import ParameterError

NAME = "koloskova_theorem_4_1"
VERSION = 1
TERMS = Terms(
    neighbours=gradient_clipping.TERMS.neighbours,
    adaptive=False,
    assumptions=gradient_clipping.TERMS.assumptions,
    source="Koloskova et al. 2025, Theorem 4.1, its first case up to eps = 0.257 log(1/delta)",
)
UNREGULARISED_LIMIT = 0.257
REGULARISED_LIMIT = 3.0


def account(
    *,
    delta: float,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    noise_std: float,
    steps: int,
) -> PointGuarantee:
    """Return the theorem's epsilon at ``delta``.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon above the theorem's.
    """
    product = _product(
        delta=delta,
        initial_clip=initial_clip,
        gradient_clip=gradient_clip,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        steps=steps,
    )
    epsilon = product / require_noise("noise_std", noise_std) * (1 + 1e-13)
    _check_range(epsilon, delta, weight_decay)
    return PointGuarantee(terms=TERMS, at_epsilon=epsilon, at_delta=delta)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    steps: int,
) -> float:
    """Return the theorem's noise_std for (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range, or epsilon above the theorem's.
    """
    product = _product(
        delta=delta,
        initial_clip=initial_clip,
        gradient_clip=gradient_clip,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        steps=steps,
    )
    _check_range(require_positive("epsilon", epsilon), delta, weight_decay)
    return product / epsilon * (1 + 2e-13)


def _product(
    *,
    delta: float,
    initial_clip: float,
    gradient_clip: float,
    learning_rate: float,
    weight_decay: float,
    steps: int,
) -> float:
    """Return epsilon times sigma."""
    root = math.sqrt(-math.log(require_delta(delta)))
    start = require_positive("initial_clip", initial_clip)
    clip = require_non_negative("gradient_clip", gradient_clip)
    rate = require_positive("learning_rate", learning_rate)
    decay = rate * require_non_negative("weight_decay", weight_decay)
    steps = require_steps("steps", steps)
    if decay == 0:
        return 3 * root / math.sqrt(steps) * (start + clip * rate * steps)
    if not 0.5 < decay < 1:
        raise ParameterError("weight_decay", "0, or between 0.5 and 1 times 1 / learning_rate")
    return math.sqrt(72 * decay) * root * (start * (1 - decay) ** steps + clip / weight_decay)


def _check_range(epsilon: float, delta: float, weight_decay: float) -> None:
    limit = UNREGULARISED_LIMIT if weight_decay == 0 else REGULARISED_LIMIT
    highest = -limit * math.log(delta)
    if epsilon >= highest:
        raise ParameterError("epsilon", f"below {limit} log(1/delta) = {highest:g}")

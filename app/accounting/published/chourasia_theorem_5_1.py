"""Chourasia & Shah 2023, Theorem 5.1 (G.9 and G.15): noisy gradient descent, convex losses.

    deletion:          eps_dd(q) = (4 q M^2/(lambda sigma^2 n^2)) exp(-lambda eta K/2)
    present records:   eps_dp(q) = (4 q M^2/(lambda sigma^2 n^2)) (1 - exp(-lambda eta K/2))

for eta <= 1/(2 (lambda + beta)), noise of variance 2 eta sigma^2 and a start drawn from
N(0, sigma^2/(lambda (1 - eta lambda/2)) I). The theorem speaks of one record at a time; for r
records forgotten together M grows to r M, since the gradients differ by at most 2 r M/n.

Guarantee: Renyi curve. Neighbouring relation: replacement. Assumptions: 1. as in
``strong_convexity``, with the smaller step size; 2. the start above; 3. only the final iterate of
a run is released. ``noisy_gd_convex`` certifies the same process with less than half of this.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS
from app.accounting.search import smallest_noise
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_count, require_noise, require_positive, require_steps
from app.domain.errors import ParameterError

NAME = "chourasia_theorem_5_1"
VERSION = 1
TERMS = Terms(
    neighbours=Neighbours.REPLACEMENT,
    adaptive=False,
    assumptions=(
        *ASSUMPTIONS,
        *enforced(
            "every step of the lineage used the whole data and added the stated noise",
            "the step size is at most 1 / (2 (smoothness + weight_decay))",
            "training started from N(0, sigma^2/(lambda (1 - eta lambda/2)) I)",
            "no earlier iterate of this run was released or stored",
        ),
    ),
    source="Chourasia & Shah 2023, Theorem 5.1 (G.9, G.15)",
)


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_scale: float,
    unlearning_steps: int,
    forgotten: int = 1,
) -> RenyiGuarantee:
    """Return the deletion guarantee after ``unlearning_steps`` steps, training of any length.

    Raises:
        ParameterError: a parameter is out of its range, or the step size above its bound.
    """
    factor = _factor(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        records=records,
        noise_scale=noise_scale,
        forgotten=forgotten,
    )
    steps = require_count("unlearning_steps", unlearning_steps)
    exponent = weight_decay * learning_rate * steps / 2 * (1 - 1e-14)
    left = factor * math.exp(-min(exponent, 650.0)) * (1 + 1e-12)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * left)


def account_present(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_scale: float,
    steps: int,
    group: int = 1,
) -> RenyiGuarantee:
    """Return the privacy of ``group`` records still present after ``steps`` steps.

    Raises:
        ParameterError: a parameter is out of its range, or the step size above its bound.
    """
    factor = _factor(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        records=records,
        noise_scale=noise_scale,
        forgotten=group,
    )
    exponent = weight_decay * learning_rate * require_steps("steps", steps) / 2
    gained = factor * -math.expm1(-exponent) * (1 + 1e-12)
    return RenyiGuarantee(terms=TERMS, curve=lambda order: order * gained)


def steps_needed(
    *,
    order: float,
    divergence: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_scale: float,
    forgotten: int = 1,
) -> int:
    """Return K >= (2/(lambda eta)) log(4 q M^2/(lambda e sigma^2 n^2)) for divergence e at order q.

    Raises:
        ParameterError: a parameter is out of its range, or the step size above its bound.
    """
    factor = _factor(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        records=records,
        noise_scale=noise_scale,
        forgotten=forgotten,
    )
    ratio = require_positive("order", order) * factor / require_positive("divergence", divergence)
    if ratio <= 1:
        return 0
    return math.ceil(2 / (weight_decay * learning_rate) * math.log(ratio) * (1 + 1e-12))


def calibrate(
    *,
    epsilon: float,
    delta: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    unlearning_steps: int,
    forgotten: int = 1,
) -> float:
    """Return the smallest noise_scale that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no noise of reasonable size reaches the target.
    """

    def meets(noise_scale: float) -> bool:
        guarantee = account(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            smoothness=smoothness,
            lipschitz=lipschitz,
            records=records,
            noise_scale=noise_scale,
            unlearning_steps=unlearning_steps,
            forgotten=forgotten,
        )
        return guarantee.epsilon(delta=delta) <= require_positive("epsilon", epsilon)

    return smallest_noise(meets, scale=forgotten * lipschitz / records)


def _factor(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_scale: float,
    forgotten: int,
) -> float:
    """Return 4 (r M)^2/(lambda sigma^2 n^2)."""
    rate = require_positive("learning_rate", learning_rate)
    decay = require_positive("weight_decay", weight_decay)
    if rate * 2 * (require_positive("smoothness", smoothness) + decay) > 1 + 1e-12:
        raise ParameterError("learning_rate", "at most 1 / (2 (smoothness + weight_decay))")
    share = require_steps("forgotten", forgotten) / require_steps("records", records)
    reach = share * require_positive("lipschitz", lipschitz)
    reach /= require_noise("noise_scale", noise_scale)
    return 4 * reach * reach / decay * (1 + 1e-13)

"""Tracked release: train and unlearn without noise, add noise once, at release.

    x <- x - learning_rate grad f(x; batch)   K times on the retain set (K = 0 is allowed)
    release x + N(0, noise_std^2 I)

Training without noise makes both worlds deterministic given their seeds, at most D apart
(``drift.DriftLedger``); K further steps over equal data leave c^K D.

Guarantee: mu-GDP with mu = c^K D / noise_std, exactly. Neighbouring relation: zero_out or
replacement, as the ledger says. Assumptions:
 1. the loss and the step size are as in ``strong_convexity``;
 2. the ledger holds every step and every request of the lineage;
 3. the noise-free weights are destroyed at release and the lineage goes on from the noisy release.
    Keeping them would be the secret state that Chourasia & Shah 2023, Theorem 3.2, breaks.
Noise that both worlds add alike does not change D, so the ledger goes on unchanged.
Source: Expunge; the drift is Chien et al. 2024, Lemma 3.3.
"""

import math

from app.accounting import gaussian
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.strong_convexity import ASSUMPTIONS, contraction, factor
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import (
    require_count,
    require_noise,
    require_non_negative,
    require_positive,
)
from app.domain.errors import CalibrationError

NAME = "tracked_release"
VERSION = 1
MOST_STEPS = 10**9


def terms(neighbours: Neighbours) -> Terms:
    """Return the terms under one neighbouring relation.

    Raises:
        ParameterError: the relation is neither zero_out nor replacement.
    """
    factor(neighbours)
    return Terms(
        neighbours=Neighbours(neighbours),
        adaptive=False,
        assumptions=(
            *ASSUMPTIONS,
            *enforced(
                "the drift ledger holds every step and request of the lineage",
                "the noise-free weights were destroyed at release",
                "the lineage goes on from the noisy release",
            ),
        ),
        source="drift: Chien et al. 2024, Lemma 3.3; Dong, Roth & Su 2022, Theorem 2.7",
    )


TERMS = terms(Neighbours.ZERO_OUT)


def remaining_drift(
    *, drift: float, learning_rate: float, weight_decay: float, smoothness: float, steps: int
) -> float:
    """Return c^K D after ``steps`` iterations over equal data, rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    drift = require_non_negative("drift", drift)
    rate = contraction(
        learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
    )
    if drift == 0 or require_count("steps", steps) == 0:
        return drift
    # pow is correct to an ulp for this rate; far below 1e-290 it would lose digits.
    return max(drift * rate**steps * (1 + 1e-14), 1e-290)


def account(
    *,
    drift: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    noise_std: float,
    steps: int = 0,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
) -> GaussianGuarantee:
    """Return the guarantee of a release ``steps`` noise-free iterations after the request.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    left = remaining_drift(
        drift=drift,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        steps=steps,
    )
    mu = left / require_noise("noise_std", noise_std) * (1 + 1e-15)
    return GaussianGuarantee(terms=terms(neighbours), mu=mu)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    drift: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    steps: int = 0,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    left = remaining_drift(
        drift=require_positive("drift", drift),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        steps=steps,
    )
    return left / gaussian.mu_of(epsilon=epsilon, delta=delta) * (1 + 4e-15)


def steps_needed(
    *,
    epsilon: float,
    delta: float,
    drift: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    noise_std: float,
) -> int:
    """Return the smallest number of iterations that reaches (epsilon, delta); may be 0.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: no number of iterations is enough, or more than a thousand million.
    """
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    allowed = target * require_noise("noise_std", noise_std)
    job = {
        "drift": require_non_negative("drift", drift),
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "smoothness": smoothness,
    }
    rate = contraction(
        learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
    )
    if drift > 0 and rate == 1 and drift / noise_std * (1 + 1e-15) > target:
        raise CalibrationError("without weight decay no step brings the worlds closer")
    guess = 0.0
    if drift > allowed and rate < 1:
        guess = math.log(drift / allowed) / -math.log1p(rate - 1) if rate > 0 else 1.0
    if not guess < MOST_STEPS:
        raise CalibrationError("more than a thousand million iterations are needed")
    for steps in range(max(0, math.floor(guess) - 1), math.floor(guess) + 4):
        if remaining_drift(**job, steps=steps) / noise_std * (1 + 1e-15) <= target:
            return steps
    raise CalibrationError("the search for the number of iterations did not converge")

"""Projected noisy SGD (Chien et al. 2024, Algorithm 1), for strongly convex losses.

    x <- project(x - learning_rate grad f(x; batch) + N(0, noise_std^2 I))

in training and in unlearning; projection is optional. The paper writes noise_std^2 = 2 eta sigma^2
(``noise_std_of``). At the start of the unlearning run the worlds are at most ``drift`` apart when
they share their noise (``drift.DriftLedger``); from then on their maps are equal and c-Lipschitz.

Guarantee: mu-GDP, mu = drift c^K / (noise_std sqrt((1 - c^{2K}) / (1 - c^2))) after K iterations.
Neighbouring relation: zero_out or replacement, as the ledger says. Assumptions:
 1. the loss and the step size are as in ``strong_convexity``;
 2. the ledger holds every step and every request of the lineage;
 3. nothing but the final iterate of a run is released.
No convergence of training is assumed: the reference is the same pipeline without the records.
"""

import math

from app.accounting import gaussian, present_records
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.noisy_chain import NoisyChain, constant_mu
from app.accounting.strong_convexity import ASSUMPTIONS, contraction, factor, gradient_shift
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import (
    require_noise,
    require_non_negative,
    require_positive,
    require_steps,
)
from app.domain.errors import CalibrationError

NAME = "projected_noisy_sgd"
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
                "no earlier iterate of this run was released or stored",
            ),
        ),
        source="Chien et al. 2024, Algorithm 1 and Lemma 3.3; "
        "Bok, Su & Altschuler 2024 for the trade-off function",
    )


TERMS = terms(Neighbours.ZERO_OUT)


def noise_std_of(*, learning_rate: float, noise_scale: float) -> float:
    """Return sqrt(2 eta) sigma: the noise of one step in the papers' convention.

    Raises:
        ParameterError: a number is not positive.
    """
    rate = require_positive("learning_rate", learning_rate)
    return math.sqrt(2 * rate) * require_positive("noise_scale", noise_scale)


class Odometer:
    """Counts unlearning steps that were actually taken.

    Args:
        drift: D at the start of the run.
        learning_rate: eta.
        weight_decay: lambda.
        smoothness: of the loss of one record.
        neighbours: zero_out or replacement.
    """

    def __init__(
        self,
        *,
        drift: float,
        learning_rate: float,
        weight_decay: float,
        smoothness: float,
        neighbours: Neighbours = Neighbours.ZERO_OUT,
    ) -> None:
        self._contraction = contraction(
            learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
        )
        self._chain = NoisyChain(start_distance=require_non_negative("drift", drift))
        self._terms = terms(neighbours)

    def step(self, noise_std: float) -> float:
        """Count one step and return mu so far."""
        return self._chain.step(self._contraction, 0.0, noise_std)

    @property
    def steps(self) -> int:
        """How many steps were counted."""
        return self._chain.steps

    @property
    def mu(self) -> float:
        """The guarantee so far, infinite before the first step."""
        return self._chain.mu

    def guarantee(self) -> GaussianGuarantee:
        """Return what the steps so far guarantee.

        Raises:
            ParameterError: no noisy step was counted yet.
        """
        return GaussianGuarantee(terms=self._terms, mu=self._chain.certified_mu())


def account(
    *,
    drift: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    noise_std: float,
    steps: int,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
) -> GaussianGuarantee:
    """Return the guarantee of ``steps`` noisy iterations that start ``drift`` apart.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    mu = constant_mu(
        start_distance=require_non_negative("drift", drift),
        contraction=contraction(
            learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
        ),
        shift=0.0,
        noise_std=require_noise("noise_std", noise_std),
        steps=steps,
    )
    return GaussianGuarantee(terms=terms(neighbours), mu=mu)


def account_present(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    batch_size: int,
    batches: int,
    noise_std: float,
    steps: int,
    group: int = 1,
    neighbours: Neighbours = Neighbours.ZERO_OUT,
) -> GaussianGuarantee:
    """Return the privacy of ``group`` records still present in one release of ``steps`` steps.

    One record is visited once a cycle, at worst last; groups add their mu (Dong, Roth & Su 2022,
    Theorem 2.14). What adaptive requests need of every earlier release (``adaptive``).

    Raises:
        ParameterError: a parameter is out of its range.
    """
    mu = present_records.cyclic_mu(
        contraction=contraction(
            learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
        ),
        shift=gradient_shift(
            learning_rate=learning_rate,
            lipschitz=lipschitz,
            batch_size=batch_size,
            neighbours=neighbours,
        ),
        noise_std=noise_std,
        cycle=batches,
        steps=steps,
    )
    total = require_steps("group", group) * mu
    return GaussianGuarantee(terms=terms(neighbours), mu=total)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    drift: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    steps: int,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta) in ``steps`` steps, rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    unit = account(
        drift=require_positive("drift", drift),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        noise_std=1.0,
        steps=steps,
    )
    # The margin covers the rounding of an odometer that walks the same steps.
    return unit.mu / target * (1 + 1e-13 + 4e-15 * steps)


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
    """Return the smallest number of iterations that reaches (epsilon, delta).

    From mu^2 = D^2 c^{2K} (1 - c^2) / (v (1 - c^{2K})), solved for K and confirmed.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: more than a thousand million iterations are needed.
    """
    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    drift = require_non_negative("drift", drift)
    noise_std = require_noise("noise_std", noise_std)
    rate = contraction(
        learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
    )
    ratio = (drift / (target * noise_std)) ** 2
    if rate == 1:
        guess = ratio
    elif rate == 0:
        guess = 1.0
    else:
        guess = math.log1p(ratio * (1 - rate) * (1 + rate)) / (-2 * math.log1p(rate - 1))
    if not guess < MOST_STEPS:
        raise CalibrationError("more than a thousand million iterations are needed")
    for steps in range(max(1, math.floor(guess) - 1), math.floor(guess) + 4):
        mu = constant_mu(
            start_distance=drift, contraction=rate, shift=0.0, noise_std=noise_std, steps=steps
        )
        if mu <= target:
            return require_steps("steps", steps)
    raise CalibrationError("the search for the number of iterations did not converge")

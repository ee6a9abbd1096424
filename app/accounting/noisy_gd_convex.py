"""Noisy gradient descent with deletion privacy, convex losses (Chourasia & Shah 2023, section 5.1).

    x <- x - learning_rate grad L_D(x) + N(0, noise_std^2 I)      full batch of ``records`` records

L_D averages losses that are convex, ``smoothness``-smooth and ``lipschitz``-Lipschitz, plus
(weight_decay/2)|x|^2. The paper writes noise_std^2 = 2 eta sigma^2. All of the training is noisy
as well, so its noise counts. With c = 1 - eta lambda, s = kappa r eta M / n for r forgotten
records, K_A steps while they were present and K since:

    D = c^K s (1 - c^{K_A}) / (1 - c)      W = noise_std^2 (1 - c^{2(K_A + K)}) / (1 - c^2)
    mu = D / sqrt(W)

The straight line from (0, 0) to (V_T, S_T) lies below every (V_k, S_k) here, so it is the convex
minorant of ``present_records`` over the whole history. For every order this is less than half of
the paper's Renyi bound (``published.chourasia_theorem_5_1``), and its exponent is 2 eta lambda K
where the paper has eta lambda K / 2.

Requests that may depend on ``earlier_releases`` releases cost mu^2 = mu^2 + p mu_present^2
(``adaptive``), where present is the privacy of the r records in any release made before they left.

Guarantee: mu-GDP. Neighbouring relation: zero_out or replacement. Assumptions:
 1. loss and step size are as in ``strong_convexity``;
 2. both worlds start from the same distribution;
 3. nothing but the final iterate of a run is released.
"""

import math
from typing import cast

from app.accounting import adaptive, gaussian, present_records
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.noisy_chain import NoisyChain
from app.accounting.strong_convexity import ASSUMPTIONS, contraction, factor
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_count, require_noise, require_positive, require_steps

NAME = "noisy_gd_convex"
VERSION = 1


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
                "every step of the lineage, training included, added the stated noise",
                "no earlier iterate of this run was released or stored",
            ),
        ),
        source="Chourasia & Shah 2023, section 5.1, by shifted interpolation "
        "(Bok, Su & Altschuler 2024)",
    )


TERMS = terms(Neighbours.REPLACEMENT)


class Odometer:
    """Counts unlearning steps that were actually taken; the training before is known.

    Args:
        training_steps: K_A, the steps taken while the forgotten records were present.
        forgotten: r, the number of records forgotten so far.
        noise_std: of every step of training.
    """

    def __init__(
        self,
        *,
        learning_rate: float,
        weight_decay: float,
        smoothness: float,
        lipschitz: float,
        records: int,
        noise_std: float,
        training_steps: int,
        forgotten: int = 1,
        neighbours: Neighbours = Neighbours.REPLACEMENT,
    ) -> None:
        self._terms = terms(neighbours)
        self._contraction = contraction(
            learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
        )
        shift = _shift(learning_rate, lipschitz, records, forgotten, neighbours)
        noise = require_noise("noise_std", noise_std)
        length = _length(self._contraction, require_steps("training_steps", training_steps))
        squares = _length(self._contraction**2, training_steps)
        self._chain = NoisyChain(
            start_distance=shift * length * (1 + 1e-13),
            start_variance=noise * noise * squares * (1 - 1e-13),
        )

    def step(self, noise_std: float) -> float:
        """Count one step and return mu so far."""
        return self._chain.step(self._contraction, 0.0, noise_std)

    @property
    def steps(self) -> int:
        """How many steps were counted."""
        return self._chain.steps

    @property
    def mu(self) -> float:
        """The guarantee so far."""
        return self._chain.mu

    def guarantee(self) -> GaussianGuarantee:
        """Return what the steps so far guarantee."""
        return GaussianGuarantee(terms=self._terms, mu=self._chain.certified_mu())


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_std: float,
    training_steps: int,
    unlearning_steps: int,
    forgotten: int = 1,
    neighbours: Neighbours = Neighbours.REPLACEMENT,
    earlier_releases: int | None = None,
) -> GaussianGuarantee:
    """Return the deletion guarantee after ``unlearning_steps`` steps without the records.

    ``earlier_releases`` counts every release of the lineage so far; None stands for requests that
    were fixed in advance.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    rate = contraction(
        learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
    )
    shift = _shift(learning_rate, lipschitz, records, forgotten, neighbours)
    noise = require_noise("noise_std", noise_std)
    before = require_steps("training_steps", training_steps)
    after = require_count("unlearning_steps", unlearning_steps)
    drift = max(rate**after, 1e-280) * shift * _length(rate, before)
    variance = _length(rate * rate, before + after)
    mu = drift / (noise * math.sqrt(variance)) * (1 + 1e-12)
    deletion = GaussianGuarantee(terms=terms(neighbours), mu=mu)
    if earlier_releases is None:
        return deletion
    present = account_present(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        records=records,
        noise_std=noise_std,
        steps=training_steps,
        group=forgotten,
        neighbours=neighbours,
    )
    composed = adaptive.compose(
        deletion=deletion, present=present, earlier_releases=earlier_releases
    )
    return cast("GaussianGuarantee", composed)


def account_present(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_std: float,
    steps: int,
    group: int = 1,
    neighbours: Neighbours = Neighbours.REPLACEMENT,
) -> GaussianGuarantee:
    """Return the privacy of ``group`` records still present in one release of ``steps`` steps.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    mu = present_records.constant_mu(
        contraction=contraction(
            learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
        ),
        shift=_shift(learning_rate, lipschitz, records, group, neighbours),
        noise_std=noise_std,
        steps=steps,
    )
    return GaussianGuarantee(terms=terms(neighbours), mu=mu)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    training_steps: int,
    unlearning_steps: int,
    forgotten: int = 1,
    neighbours: Neighbours = Neighbours.REPLACEMENT,
    earlier_releases: int | None = None,
) -> float:
    """Return the smallest noise_std that reaches (epsilon, delta), rounded up.

    Raises:
        ParameterError: a parameter is out of its range.
        CalibrationError: the conversion of the target did not converge.
    """
    unit = account(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        smoothness=smoothness,
        lipschitz=lipschitz,
        records=records,
        noise_std=1.0,
        training_steps=training_steps,
        unlearning_steps=unlearning_steps,
        forgotten=forgotten,
        neighbours=neighbours,
        earlier_releases=earlier_releases,
    )
    # The margin covers the rounding of an odometer that walks the same steps.
    margin = 1 + 1e-12 + 4e-15 * unlearning_steps
    return unit.mu / gaussian.mu_of(epsilon=epsilon, delta=delta) * margin


def _shift(
    learning_rate: float, lipschitz: float, records: int, forgotten: int, neighbours: Neighbours
) -> float:
    share = require_steps("forgotten", forgotten) / require_steps("records", records)
    size = require_positive("learning_rate", learning_rate)
    return factor(neighbours) * share * size * require_positive("lipschitz", lipschitz)


def _length(rate: float, steps: int) -> float:
    """Return 1 + rate + ... + rate^(steps - 1)."""
    if rate == 1:
        return float(steps)
    if rate == 0:
        return float(min(steps, 1))
    gap = 1.0 - rate
    exponent = steps * (math.log1p(-gap) if rate > 0.5 else math.log(rate))
    return -math.expm1(exponent) / gap

"""Langevin unlearning (Chien et al. 2024b; Theorems P.1 and P.2 of Chien et al. 2024).

    epsilon(alpha) = exp(-m eta K / alpha) 4 alpha S^2 M^2 / (m sigma^2 n^2)

Full-batch noisy gradient descent, noise of variance 2 eta sigma^2, eta <= 1/L, S = ``forgotten``
records at once, K unlearning steps after training that has converged. P.2 alone (K = 0, T training
steps) carries the factor 1 - exp(-m eta T), at most 1.

Guarantee: Renyi curve. Neighbouring relation: replacement. Assumptions: 1. as in
``strong_convexity``; 2. asserted: training has converged; 3. the start satisfies a log-Sobolev
inequality with constant 2 sigma^2/m; 4. only the final iterate is released.
"""

import math

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS, papers_contraction
from app.accounting.search import smallest_noise
from app.accounting.terms import Neighbours, Terms, asserted, enforced
from app.domain.checks import require_count, require_noise, require_positive, require_steps

NAME = "chien_theorem_p_2"
VERSION = 1
TERMS = Terms(
    neighbours=Neighbours.REPLACEMENT,
    adaptive=False,
    assumptions=(
        *ASSUMPTIONS,
        *enforced(
            "every step of the lineage used the whole data and added the stated noise",
            "training started from N(0, 2 sigma^2/m I)",
            "no earlier iterate of this run was released or stored",
        ),
        *asserted("training has converged to its stationary distribution"),
    ),
    source="Chien et al. 2024, Theorems P.1 and P.2",
    reference="the stationary distribution of training without the forgotten records",
)


def account(
    *,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    noise_scale: float,
    steps: int,
    forgotten: int = 1,
) -> RenyiGuarantee:
    """Return the Renyi curve after ``steps`` unlearning steps.

    Raises:
        ParameterError: a parameter is out of its range.
    """
    papers_contraction(
        learning_rate=learning_rate, weight_decay=weight_decay, smoothness=smoothness
    )
    decay = require_positive("weight_decay", weight_decay)
    share = require_steps("forgotten", forgotten) / require_steps("records", records)
    reach = share * require_positive("lipschitz", lipschitz)
    reach /= require_noise("noise_scale", noise_scale)
    start = 4 * reach * reach / decay * (1 + 1e-13)
    pace = decay * learning_rate * require_count("steps", steps) * (1 - 1e-14)
    return RenyiGuarantee(
        terms=TERMS,
        curve=lambda order: start * order * math.exp(-min(pace / order, 650.0)) * (1 + 1e-12),
    )


def calibrate(
    *,
    epsilon: float,
    delta: float,
    learning_rate: float,
    weight_decay: float,
    smoothness: float,
    lipschitz: float,
    records: int,
    steps: int,
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
            steps=steps,
            forgotten=forgotten,
        )
        return guarantee.epsilon(delta=delta) <= require_positive("epsilon", epsilon)

    return smallest_noise(meets, scale=forgotten * lipschitz / records)

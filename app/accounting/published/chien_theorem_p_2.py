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
from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS, papers_contraction
from app.accounting.published import full_batch
from app.accounting.published.bound import account_of, calibrate_of
from app.accounting.terms import Neighbours, Terms, asserted, enforced
from app.domain.checks import require_count

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


@dataclass(frozen=True, kw_only=True)
class Parameters(full_batch.Theorem):
    """Those of ``full_batch.Setting``, and the theorem's own.

    Attributes:
        steps: K.
    """

    steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve after ``steps`` unlearning steps."""
        papers_contraction(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            smoothness=self.smoothness,
        )
        start, steps = self.factor(), require_count("steps", self.steps)
        pace = self.weight_decay * self.learning_rate * steps * (1 - 1e-14)
        return RenyiGuarantee(
            terms=TERMS,
            curve=lambda order: start * order * math.exp(-min(pace / order, 650.0)) * (1 + 1e-12),
        )


account = account_of(Parameters)
calibrate = calibrate_of(Parameters)

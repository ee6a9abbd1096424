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
from dataclasses import dataclass, replace

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import papers_contraction
from app.accounting.published import full_batch
from app.accounting.published.bound import functions_of
from app.accounting.terms import asserted
from app.domain.checks import require_count

NAME = "chien_theorem_p_2"
VERSION = 1
_STARTED = full_batch.terms(
    "Chien et al. 2024, Theorems P.1 and P.2", "training started from N(0, 2 sigma^2/m I)"
)
TERMS = replace(
    _STARTED,
    assumptions=(
        *_STARTED.assumptions,
        *asserted("training has converged to its stationary distribution"),
    ),
    reference="the stationary distribution of training without the forgotten records",
)


@dataclass(frozen=True, kw_only=True)
class Parameters(full_batch.Theorem):
    """The constants of ``full_batch.Setting`` and K = ``steps``."""

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


account, calibrate = functions_of(Parameters)

"""Chien et al. 2024, Corollary 3.8: batches drawn at random, requests that do not depend on them.

    epsilon(alpha) = 1/(alpha - 1) log E_j exp(alpha (alpha - 1) Z_j^2 c^{2Kn/b} / (2 eta sigma^2))
    Z_j = min(c^{n/b - j - 1} 2 eta M/(b (1 - c^{n/b})), 2R)     j uniform over the n/b positions

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released; 4. the
partition is uniform, secret, and the request was chosen without knowledge of it.
"""

import math
from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of
from app.accounting.terms import asserted
from app.domain.checks import require_steps

NAME = "chien_corollary_3_8"
VERSION = 1
TERMS = chien.terms(
    "Corollary 3.8",
    *asserted("the request was chosen without knowledge of the secret partition into batches"),
)


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting`` and K = ``epochs``."""

    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        amplification = self.amplification(require_steps("epochs", self.epochs) * self.batches)
        reach = self.epochs_lost() * self.shift
        factors = [
            self.divergence_factor(min(self.decay(later) * reach, 2 * self.radius)) * amplification
            for later in range(self.batches)
        ]
        highest = max(factors)

        def curve(order: float) -> float:
            # log-mean-exp around the largest term.
            scale = order * (order - 1)
            total = math.fsum(math.exp(scale * (factor - highest)) for factor in factors)
            mean = math.log(total / len(factors)) / (order - 1)
            return max(0.0, order * highest + mean) + 1e-13 * order * highest + 1e-15 / (order - 1)

        return RenyiGuarantee(terms=TERMS, curve=curve)


account, calibrate = functions_of(Parameters)

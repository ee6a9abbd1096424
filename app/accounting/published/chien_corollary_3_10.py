"""Chien et al. 2024, Corollary 3.10: merely convex losses (c = 1), T epochs of training.

    epsilon(alpha) = alpha Z^2 / (2 eta sigma^2) b/(K n),   Z = min(2 eta M T/b, 2R)

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity`` with weight_decay 0; 2. projection to radius R; 3. only the final iterate is
released.
"""

from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of, proportional
from app.domain.checks import require_steps
from app.domain.errors import ParameterError

NAME = "chien_corollary_3_10"
VERSION = 1
TERMS = chien.terms("Corollary 3.10")


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting``, T = ``training_epochs`` and K = ``epochs``."""

    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        if self.weight_decay != 0:
            raise ParameterError("weight_decay", "0, or use corollary 3.7")
        steps = require_steps("epochs", self.epochs) * self.batches
        trained = require_steps("training_epochs", self.training_epochs)
        distance = min(trained * self.shift, 2 * self.radius)
        return proportional(TERMS, self.divergence_factor(distance) / steps * (1 + 1e-15))


account, calibrate = functions_of(Parameters)

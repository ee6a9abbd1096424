"""Chien et al. 2024, Theorem 3.2: training of T epochs, K epochs of unlearning, fixed batches.

    epsilon(alpha) = (alpha - 1/2)/(alpha - 1) (e1(2 alpha) + e2(2 alpha))
    e1(alpha) = alpha (2R)^2 c^{2Tn/b} / (2 eta sigma^2)
    e2(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)
    Z = 2R c^{Tn/b} + min((1 - c^{Tn/b})/(1 - c^{n/b}) 2 eta M/b, 2R)

The weak triangle inequality pays for comparing with plain training on the other data, whose last K
epochs did not happen; against the same pipeline (``projected_noisy_sgd``) it is not needed.

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

from dataclasses import dataclass, replace

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of
from app.domain.checks import require_steps

NAME = "chien_theorem_3_2"
VERSION = 1
TERMS = replace(
    chien.terms("Theorem 3.2"),
    reference="training for the same epochs, from the same start, without the forgotten record",
)


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting``, T = ``training_epochs`` and K = ``epochs``."""

    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve after ``epochs`` of unlearning."""
        before = require_steps("training_epochs", self.training_epochs) * self.batches
        after = require_steps("epochs", self.epochs) * self.batches
        widest = 2 * self.radius
        distance = widest * self.decay(before)
        distance += min(self.epochs_lost(self.training_epochs) * self.shift, widest)
        first = self.divergence_factor(widest) * self.amplification(before)
        second = self.divergence_factor(distance) * self.amplification(after)

        def curve(order: float) -> float:
            return (order - 0.5) / (order - 1) * 2 * order * (first + second) * (1 + 1e-14)

        return RenyiGuarantee(terms=TERMS, curve=curve)


account, calibrate = functions_of(Parameters)

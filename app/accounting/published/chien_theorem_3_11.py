"""Chien et al. 2024, Theorem 3.11: sequential requests of one record each, with Corollary 3.7.

    Z(1) = Z,   Z(s+1) = min(c^{K_s n/b} Z(s) + Z, 2R),   Z = min(2 eta M/(b (1 - c^{n/b})), 2R)
    epsilon(alpha) = alpha Z(S)^2 c^{2 K_S n/b} / (2 eta sigma^2)   for the last request

``epochs`` lists K_1 .. K_S. ``sharp`` is as in ``chien_corollary_3_7``.

Guarantee: Renyi curve for the union of all forgotten records. Neighbouring relation: replacement.
Assumptions: 1. as in ``strong_convexity``; 2. projection to radius R; 3. only the final iterate of
a run is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of, proportional
from app.domain.checks import require_steps
from app.domain.errors import ParameterError

NAME = "chien_theorem_3_11"
VERSION = 1
TERMS = chien.terms("Theorem 3.11")


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting``, K_1 to K_S, and whether the sharp form is used."""

    epochs: Sequence[int]
    sharp: bool = False

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        if not self.epochs:
            raise ParameterError("epochs", "a list with one number for each request")
        *earlier, last = (require_steps("epochs", count) * self.batches for count in self.epochs)
        distance = self.drift
        for steps in earlier:
            distance = min(self.decay(steps) * distance + self.drift, 2 * self.radius)
        factor = self.divergence_factor(distance) * self.amplification(last, sharp=self.sharp)
        return proportional(TERMS, factor)


account, calibrate = functions_of(Parameters)

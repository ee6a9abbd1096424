"""Chien et al. 2024, Corollary 3.7: K epochs of unlearning after training, fixed batches.

    epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2),   Z = min(2 eta M/(b (1 - c^{n/b})), 2R)

``sharp`` puts c^{2K'} (1 - c^2) / (1 - c^{2K'}), K' = Kn/b, in place of c^{2K'}; the authors' code
does so for all requests but the first. The paper assumes converged training; against the same
pipeline on the other data no such assumption is needed, because Lemma 3.3 holds for any T.

Guarantee: Renyi curve. Neighbouring relation: replacement of one record. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of, proportional
from app.domain.checks import require_steps

NAME = "chien_corollary_3_7"
VERSION = 1
TERMS = chien.terms("Corollary 3.7")


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting``, K = ``epochs``, and whether the sharp form is used."""

    epochs: int
    sharp: bool = False

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        steps = require_steps("epochs", self.epochs) * self.batches
        factor = self.divergence_factor(self.drift) * self.amplification(steps, sharp=self.sharp)
        return proportional(TERMS, factor)


account, calibrate = functions_of(Parameters)

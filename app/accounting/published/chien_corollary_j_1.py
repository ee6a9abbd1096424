"""Chien et al. 2024, Corollary J.1: one request for records in several batches.

    Z = min((1 - c^{Tn/b})/(1 - c^{n/b}) sum_g c^{n/b - j_g - 1} 2 eta M S_g / b, 2R)
    epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)

The paper prints (1 - c^T)/(1 - c); an epoch contracts by c^{n/b}, as its own Lemma 3.3 says.
``records_by_batch`` lists [batch number, how many] pairs.

Guarantee: Renyi curve. Neighbouring relation: replacement of all these records. Assumptions: 1. as
in ``strong_convexity``; 2. projection to radius R; 3. only the final iterate is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.published import chien
from app.accounting.published.bound import functions_of, proportional
from app.domain.checks import require_count, require_steps
from app.domain.errors import ParameterError

NAME = "chien_corollary_j_1"
VERSION = 1
TERMS = chien.terms("Corollary J.1")


@dataclass(frozen=True, kw_only=True)
class Parameters(chien.Theorem):
    """The constants of ``chien.Setting``, which records, and T and K in epochs."""

    records_by_batch: Sequence[Sequence[int]]
    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        steps = require_steps("epochs", self.epochs) * self.batches
        lost = self.epochs_lost(require_steps("training_epochs", self.training_epochs))
        distance = min(lost * self._epoch_drift() * (1 + 1e-13), 2 * self.radius)
        return proportional(TERMS, self.divergence_factor(distance) * self.amplification(steps))

    def _epoch_drift(self) -> float:
        """Return how far apart the worlds are after the first epoch."""
        total = 0.0
        for batch, count in self.records_by_batch:
            if require_count("records_by_batch", batch) >= self.batches:
                raise ParameterError("records_by_batch", f"batch numbers below {self.batches}")
            if require_steps("records_by_batch", count) > self.batch_size:
                raise ParameterError("records_by_batch", f"at most {self.batch_size} of one batch")
            total += self.decay(self.batches - batch - 1) * self.shift * count
        if total == 0:
            raise ParameterError("records_by_batch", "at least one pair")
        return total


account, calibrate = functions_of(Parameters)

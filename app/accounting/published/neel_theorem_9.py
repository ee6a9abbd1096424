"""Delete-to-Descent with a secret state (Neel et al. 2021, Theorem 9; Chien et al. 2024, O.1).

    sigma = 4 sqrt(2) M gamma^I
            / (m n (1 - gamma^I) (sqrt(log(1/delta) + eps) - sqrt(log(1/delta))))

The noise-free weights are kept and unlearned further at the next request. That secret state is
what Chourasia & Shah 2023, Theorem 3.2, breaks: a baseline, not a mechanism of this service.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove of one record.
Assumptions: 1. loss and step size as in ``neel``; 2. training of I + log(2Rmn/2M)/log(1/gamma)
steps; 3. epsilon at most log(1/delta); 4. the secret state is never released.
"""

import math
from dataclasses import dataclass

from app.accounting.published import neel
from app.accounting.published.bound import functions_of
from app.domain.checks import require_delta, require_noise, require_steps

NAME = "neel_theorem_9"
VERSION = 1
TERMS = neel.terms("Theorem 9", "the noise-free weights that are kept are never released")


@dataclass(frozen=True, kw_only=True)
class Parameters(neel.Theorem):
    """Those of ``neel.Theorem``; ``steps`` is I."""

    TERMS = TERMS

    def epsilon(self) -> float:
        """Return the theorem's epsilon, k^2 + 2 k sqrt(log(1/delta)).

        k = 4 sqrt(2) M gamma^I / (m n (1 - gamma^I) sigma).
        """
        log_term = -math.log(require_delta(self.delta))
        ratio = self._reach() / require_noise("noise_std", self.noise_std)
        return (ratio * ratio + 2 * ratio * math.sqrt(log_term)) * (1 + 1e-13)

    def noise(self, *, epsilon: float) -> float:
        """Return the theorem's noise_std."""
        log_term = -math.log(require_delta(self.delta))
        # sqrt(a + eps) - sqrt(a), without cancellation.
        gap = epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))
        return self._reach() / gap * (1 + 2e-13)

    def _reach(self) -> float:
        return 4 * math.sqrt(2) * self.reach(require_steps("steps", self.steps))


account, calibrate = functions_of(Parameters)

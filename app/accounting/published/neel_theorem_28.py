"""Delete-to-Descent without a secret state (Neel et al. 2021, Theorem 28; Chien et al. 2024, O.2).

    sigma = 8 M gamma^I / (m n (1 - gamma^I) (sqrt(2 log(2/delta) + 3 eps)
                                              - sqrt(2 log(2/delta) + 2 eps)))
    I >= log(sqrt(2 d)/((1 - gamma) (sqrt(2 log(2/delta) + eps) - sqrt(2 log(2/delta)))))
         / log(1/gamma)

The i-th request runs I + log(log(4 d i/delta))/log(1/gamma) steps from the noisy weights; ``steps``
is that total, ``request`` is i and ``dimension`` is d.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove of one record.
Assumptions: 1. loss and step size as in ``neel``; 2. training long enough; 3. epsilon at most
log(1/delta).
"""

import math
from dataclasses import dataclass

from app.accounting.published import neel
from app.accounting.published.bound import functions_of
from app.domain.checks import require_delta, require_noise, require_steps
from app.domain.errors import ParameterError

NAME = "neel_theorem_28"
VERSION = 1
TERMS = neel.terms("Theorem 28")


@dataclass(frozen=True, kw_only=True)
class Parameters(neel.Theorem):
    """The constants of ``neel.Theorem``, d = ``dimension`` and i = ``request``."""

    TERMS = TERMS

    dimension: int
    request: int = 1

    def epsilon(self) -> float:
        """Return the theorem's epsilon.

        With k = 8 M gamma^I / (m n (1 - gamma^I) sigma) and a = 2 log(2/delta), the condition on
        sigma is sqrt(a + 3 eps) - sqrt(a + 2 eps) >= k, or eps >= 5 k^2 + 2 k sqrt(a + 6 k^2).
        """
        ratio = 8 * self.reach(self._effective_steps())
        ratio /= require_noise("noise_std", self.noise_std)
        epsilon = 5 * ratio * ratio + 2 * ratio * math.sqrt(self._log_term() + 6 * ratio * ratio)
        # Both conditions ask for an epsilon that is large enough, so the larger of the two holds.
        return max(epsilon * (1 + 1e-12), self._least_epsilon())

    def noise(self, *, epsilon: float) -> float:
        """Return the theorem's noise_std."""
        if epsilon < self._least_epsilon():
            raise ParameterError("steps", "more, for this theorem's condition on I")
        log_term = self._log_term()
        # sqrt(a + 3 eps) - sqrt(a + 2 eps), without cancellation.
        gap = epsilon / (math.sqrt(log_term + 3 * epsilon) + math.sqrt(log_term + 2 * epsilon))
        return 8 * self.reach(self._effective_steps()) / gap * (1 + 2e-12)

    def _log_term(self) -> float:
        return 2 * math.log(2 / require_delta(self.delta))

    def _effective_steps(self) -> int:
        """Return I: the steps that remain after those the theorem spends on the noise."""
        dimension = require_steps("dimension", self.dimension)
        order = 4 * dimension * require_steps("request", self.request) / require_delta(self.delta)
        spent = math.log(math.log(order)) / -math.log(self.gamma)
        effective = math.floor(require_steps("steps", self.steps) - spent)
        if effective < 1:
            raise ParameterError("steps", f"at least {math.ceil(spent) + 1} for this theorem")
        return effective

    def _least_epsilon(self) -> float:
        """Return the smallest epsilon for which I meets the theorem's condition."""
        gap = self.gamma ** self._effective_steps() / (1 - self.gamma)
        gap *= math.sqrt(2 * self.dimension)
        return (gap * gap + 2 * gap * math.sqrt(self._log_term())) * (1 + 1e-12)


account, calibrate = functions_of(Parameters)

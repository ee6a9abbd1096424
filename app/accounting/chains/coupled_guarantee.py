"""The better of two at each epsilon: a Gaussian guarantee, and what a coupling of the worlds gives.

The coupling takes milliseconds, so it is computed only where a formula says that it may help.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.accounting.guarantees import GaussianGuarantee, Guarantee
from app.domain.checks import require_delta, require_non_negative
from app.domain.errors import CalibrationError


@dataclass(frozen=True)
class CoupledGuarantee(GaussianGuarantee):
    """mu-GDP, as ``GaussianGuarantee``, and beside it the guarantee of a coupling.

    Attributes:
        coupled: returns the coupling's guarantee.
        least: from epsilon to a lower bound on the coupling's delta.
    """

    coupled: Callable[[], Guarantee] = field(compare=False, repr=False, kw_only=True)
    least: Callable[[float], float] = field(compare=False, repr=False, kw_only=True)

    def epsilon(self, *, delta: float) -> float:
        """Return the smaller of both epsilons, rounded up, or raise ``CalibrationError``."""
        delta = require_delta(delta)
        try:
            alone = self.alone().epsilon(delta=delta)
        except CalibrationError:
            return self.coupled().epsilon(delta=delta)
        coupled = None if alone == 0 else self._helpful(alone, delta)
        if coupled is None or coupled.delta(epsilon=alone) > delta:
            return alone
        try:
            return min(alone, coupled.epsilon(delta=delta))
        except CalibrationError:
            return alone

    def delta(self, *, epsilon: float) -> float:
        """Return the smaller of both deltas, rounded up."""
        epsilon = require_non_negative("epsilon", epsilon)
        alone = self.alone().delta(epsilon=epsilon)
        coupled = self._helpful(epsilon, alone)
        return alone if coupled is None else min(alone, coupled.delta(epsilon=epsilon))

    def advantage(self) -> float:
        """Return the smaller of both advantages, rounded up."""
        alone = self.alone().advantage()
        coupled = self._helpful(0.0, alone)
        return alone if coupled is None else min(alone, coupled.advantage())

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether either implies (epsilon, delta)."""
        epsilon, delta = require_non_negative("epsilon", epsilon), require_delta(delta)
        if epsilon > 0 and self.alone().meets(epsilon=epsilon, delta=delta):
            return True
        return self.delta(epsilon=epsilon) <= delta

    def alone(self) -> GaussianGuarantee:
        """Return the Gaussian guarantee without the coupling."""
        return GaussianGuarantee(terms=self.terms, mu=self.mu, slack=self.slack)

    def _helpful(self, epsilon: float, beyond: float) -> Guarantee | None:
        """Return the coupling's guarantee if its delta may lie below ``beyond``."""
        if self.least(epsilon) > beyond:
            return None
        try:
            return self.coupled()
        except CalibrationError:
            return None

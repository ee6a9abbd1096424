"""What an accountant returns: a statement about the real release and the reference release.

Unless its terms say otherwise, the pair (X, X') is indistinguishable both ways.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar

from app.accounting import gaussian, renyi
from app.accounting.numerics import confirmed, root_between
from app.accounting.precision import weighed
from app.accounting.terms import Terms
from app.domain.checks import require_delta, require_finite, require_non_negative
from app.domain.errors import CalibrationError, ParameterError


@dataclass(frozen=True)
class Guarantee(ABC):
    """An upper bound on what separates the two worlds, in one of several forms."""

    terms: Terms

    @property
    @abstractmethod
    def kind(self) -> str:
        """The form's name, as certificates state it."""

    @abstractmethod
    def epsilon(self, *, delta: float) -> float:
        """Return the smallest epsilon that this guarantee gives at ``delta``, rounded up."""

    @abstractmethod
    def delta(self, *, epsilon: float) -> float:
        """Return the smallest delta that this guarantee gives at ``epsilon``, rounded up."""

    @abstractmethod
    def advantage(self) -> float:
        """Return an upper bound on any attacker's true-positive minus false-positive rate."""

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether this guarantee implies (epsilon, delta)."""
        return self.delta(epsilon=epsilon) <= require_delta(delta)


@dataclass(frozen=True)
class GaussianGuarantee(Guarantee):
    """mu-GDP up to ``slack`` in total variation: as hard to tell apart as N(0, 1) and N(mu, 1).

    delta(epsilon) is that pair's plus (1 + e^epsilon) slack; mu = slack = 0 is exact.
    """

    kind: ClassVar[str] = "gaussian"

    mu: float
    slack: float = 0.0

    def __post_init__(self) -> None:
        require_non_negative("mu", self.mu)
        require_non_negative("slack", self.slack)

    def epsilon(self, *, delta: float) -> float:
        """Return the smallest epsilon, rounded outward; slack may leave none for a small delta."""
        delta = require_delta(delta)
        if self.slack == 0:
            return gaussian.epsilon_of(mu=self.mu, delta=delta) if self.mu > 0 else 0.0
        furthest = self._turning_point()
        if self._at(furthest) > delta:
            raise CalibrationError(f"rounding leaves a delta above {delta:g} at every epsilon")
        if self._at(0.0) <= delta:
            return 0.0
        target = math.log(delta)
        found = root_between(lambda epsilon: math.log(self._at(epsilon)) - target, 0.0, furthest)

        def holds(epsilon: float) -> bool:
            return epsilon >= furthest or self._at(epsilon) <= delta

        return min(furthest, confirmed(holds, found, 1))

    def delta(self, *, epsilon: float) -> float:
        """Return the smallest delta, rounded outward (docs/guarantees.md, section 1)."""
        epsilon = require_non_negative("epsilon", epsilon)
        return self._at(min(epsilon, self._turning_point()) if self.slack > 0 else epsilon)

    def advantage(self) -> float:
        """Return 2 Phi(mu/2) - 1 and the slack of both worlds (docs/guarantees.md, section 1)."""
        alone = gaussian.advantage_of(mu=self.mu) if self.mu > 0 else 0.0
        return min(1.0, alone + 2 * self.slack * (1 + 1e-15))

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether mu is at most the largest mu that gives (epsilon, delta)."""
        if self.slack == 0:
            return self.mu <= gaussian.mu_of(epsilon=epsilon, delta=delta)
        return super().meets(epsilon=epsilon, delta=delta)

    def _at(self, epsilon: float) -> float:
        alone = gaussian.delta_of(mu=self.mu, epsilon=epsilon) if self.mu > 0 else 0.0
        return min(1.0, alone + weighed(self.slack, epsilon))

    def _turning_point(self) -> float:
        """Return where delta is least; what holds there holds at every larger epsilon."""
        if not 0 < self.slack < 1 or self.mu == 0:
            return 0.0
        return max(0.0, -self.mu * (NormalDist().inv_cdf(self.slack) + self.mu / 2))

    def surviving_information_bits(self) -> float:
        """Return what can survive of a start, in bits (docs/guarantees.md, section 3.1)."""
        return gaussian.surviving_information_bits(mu=self.mu) if self.mu > 0 else 0.0


@dataclass(frozen=True)
class RenyiGuarantee(Guarantee):
    """A bound, perhaps infinite, on the Renyi divergence at orders up to ``highest_order``."""

    kind: ClassVar[str] = "renyi"

    curve: Callable[[float], float] = field(compare=False)
    highest_order: float = math.inf

    def __post_init__(self) -> None:
        if math.isnan(self.highest_order) or self.highest_order <= 1:
            raise ParameterError("highest_order", "above 1")
        probe = min(2.0, (1 + self.highest_order) / 2)
        if math.isnan(self.curve(probe)):
            raise ParameterError("curve", "a number at every order")

    def epsilon(self, *, delta: float) -> float:
        """Return the smaller of Mironov's and Balle et al.'s epsilon (``renyi``)."""
        return renyi.best_epsilon(curve=self.curve, delta=delta, highest_order=self.highest_order)

    def delta(self, *, epsilon: float) -> float:
        """Return the smaller of Mironov's and Balle et al.'s delta (``renyi``)."""
        found = renyi.best_log_delta(
            curve=self.curve, epsilon=epsilon, highest_order=self.highest_order
        )
        return math.exp(max(found, -700.0))

    def advantage(self) -> float:
        """Return Chourasia & Shah 2023, Theorem 4.1, at its best order."""
        return renyi.advantage(curve=self.curve, highest_order=self.highest_order)


@dataclass(frozen=True)
class PointGuarantee(Guarantee):
    """One pair (epsilon, delta) and what follows from it only by monotonicity."""

    kind: ClassVar[str] = "point"

    at_epsilon: float
    at_delta: float

    def __post_init__(self) -> None:
        require_non_negative("at_epsilon", self.at_epsilon)
        if not 0 <= require_finite("at_delta", self.at_delta) <= 1:
            raise ParameterError("at_delta", "from 0 to 1")

    def epsilon(self, *, delta: float) -> float:
        """Return the pair's epsilon, or raise ``ParameterError`` for a smaller delta."""
        if require_delta(delta) < self.at_delta:
            raise ParameterError("delta", f"at least {self.at_delta!r}, where this guarantee lies")
        return self.at_epsilon

    def delta(self, *, epsilon: float) -> float:
        """Return the pair's delta, or raise ``ParameterError`` for a smaller epsilon."""
        if require_non_negative("epsilon", epsilon) < self.at_epsilon:
            raise ParameterError(
                "epsilon", f"at least {self.at_epsilon!r}, where this guarantee lies"
            )
        return self.at_delta

    def advantage(self) -> float:
        """Return delta + (1 - delta) tanh(epsilon/2) (Kairouz, Oh & Viswanath 2015, 3.4)."""
        spread = math.tanh(self.at_epsilon / 2)
        return min(1.0, (self.at_delta + (1 - self.at_delta) * spread) * (1 + 1e-15))

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether monotonicity implies (epsilon, delta)."""
        return (
            require_non_negative("epsilon", epsilon) >= self.at_epsilon
            and require_delta(delta) >= self.at_delta
        )


@dataclass(frozen=True)
class ProfileGuarantee(Guarantee):
    """A whole privacy profile, computed numerically: upper bounds both ways."""

    kind: ClassVar[str] = "profile"

    delta_at: Callable[[float], float] = field(compare=False)
    epsilon_at: Callable[[float], float] = field(compare=False)

    def epsilon(self, *, delta: float) -> float:
        """Return the profile's epsilon, or raise ``CalibrationError`` where it has none."""
        value = self.epsilon_at(require_delta(delta))
        if not 0 <= value < math.inf:
            raise CalibrationError("the privacy profile has no finite epsilon at this delta")
        return value

    def delta(self, *, epsilon: float) -> float:
        """Return the profile's delta."""
        value = self.delta_at(require_non_negative("epsilon", epsilon))
        if not value >= 0:
            raise CalibrationError("the privacy profile has no delta at this epsilon")
        return min(1.0, value)

    def advantage(self) -> float:
        """Return delta(0), the total variation distance."""
        return self.delta(epsilon=0.0)


@dataclass(frozen=True)
class ExactGuarantee(Guarantee):
    """(0, 0): the two worlds have the same distribution."""

    kind: ClassVar[str] = "exact"

    def epsilon(self, *, delta: float) -> float:
        """Return 0."""
        require_delta(delta)
        return 0.0

    def delta(self, *, epsilon: float) -> float:
        """Return 0."""
        require_non_negative("epsilon", epsilon)
        return 0.0

    def advantage(self) -> float:
        """Return 0."""
        return 0.0

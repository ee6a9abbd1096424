"""What an accountant returns: a statement about the real release and the reference release.

Both directions always hold: the pair (X, X') of MATH.md section 1 is indistinguishable both ways.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from app.accounting import gaussian
from app.domain.checks import require_delta


class Neighbours(StrEnum):
    """How the reference world may differ from the real one."""

    ANY_START = "any_start"
    ZERO_OUT = "zero_out"
    REPLACEMENT = "replacement"


class Support(StrEnum):
    """Whether an assumption is enforced by code or is the operator's word."""

    ENFORCED = "enforced"
    ASSERTED = "asserted"


@dataclass(frozen=True)
class Assumption:
    """One condition of a theorem."""

    statement: str
    support: Support


@dataclass(frozen=True)
class Terms:
    """The small print that travels with every guarantee.

    Attributes:
        neighbours: the neighbouring relation.
        adaptive: whether requests may depend on earlier releases.
        assumptions: every condition, enforced or asserted.
        source: paper and theorem.
    """

    neighbours: Neighbours
    adaptive: bool
    assumptions: tuple[Assumption, ...]
    source: str


@dataclass(frozen=True)
class Guarantee(ABC):
    """An upper bound on what separates the two worlds, in one of several forms."""

    terms: Terms

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
    """mu-GDP: at least as hard to tell apart as N(0, 1) and N(mu, 1)."""

    mu: float

    def epsilon(self, *, delta: float) -> float:
        """Return the exact epsilon, rounded outward (MATH.md section 2)."""
        return gaussian.epsilon_of(mu=self.mu, delta=delta)

    def delta(self, *, epsilon: float) -> float:
        """Return the exact delta, rounded outward (MATH.md section 2)."""
        return gaussian.delta_of(mu=self.mu, epsilon=epsilon)

    def advantage(self) -> float:
        """Return 2 Phi(mu/2) - 1 (MATH.md section 8)."""
        return gaussian.advantage_of(mu=self.mu)

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether mu is at most the largest mu that gives (epsilon, delta)."""
        return self.mu <= gaussian.mu_of(epsilon=epsilon, delta=delta)

    def surviving_information_bits(self) -> float:
        """Return the bound of MATH.md section 3d, in bits."""
        return gaussian.surviving_information_bits(mu=self.mu)

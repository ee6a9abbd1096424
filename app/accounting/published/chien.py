"""What the bounds of Chien et al. 2024 share: their constants, distances and Renyi form.

Their printed bounds divide by 2 eta sigma^2 although the algorithm's noise, of variance
2 eta sigma^2, gives 4 eta sigma^2 (``projected_noisy_sgd`` uses it): twice too large, and kept
here because these accountants reproduce the paper. Distances are for replacement.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS, papers_contraction
from app.accounting.published.bound import SearchedBound
from app.accounting.terms import Assumption, Neighbours, Terms, enforced
from app.domain.checks import require_positive, require_steps
from app.domain.errors import ParameterError

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Setting:
    """The constants of Algorithm 1, checked once.

    Attributes:
        learning_rate: eta, at most 1 / (smoothness + weight_decay).
        weight_decay: m, the strong convexity; 0 for merely convex losses.
        smoothness: of the loss of one record, without weight decay.
        lipschitz: M.
        batch_size: b.
        records: n, a multiple of b.
        noise_scale: sigma; one step adds noise of variance 2 eta sigma^2.
        radius: R of the ball to which weights are projected.
    """

    learning_rate: float
    weight_decay: float
    smoothness: float
    lipschitz: float
    batch_size: int
    records: int
    noise_scale: float
    radius: float

    def __post_init__(self) -> None:
        _ = self.contraction
        for name in ("lipschitz", "noise_scale", "radius"):
            require_positive(name, getattr(self, name))
        require_steps("batch_size", self.batch_size)
        if require_steps("records", self.records) % self.batch_size != 0:
            raise ParameterError("records", "a multiple of batch_size")

    @property
    def contraction(self) -> float:
        """Return c = 1 - eta m, rounded up."""
        return papers_contraction(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            smoothness=self.smoothness,
        )

    @property
    def batches(self) -> int:
        """Return n / b, the number of batches."""
        return self.records // self.batch_size

    @property
    def shift(self) -> float:
        """Return 2 eta M / b, how far one replaced record moves one step."""
        return 2 * self.learning_rate * self.lipschitz / self.batch_size * (1 + _ROUNDING)

    @property
    def drift(self) -> float:
        """Return Z = min(2 eta M / (b (1 - c^{n/b})), 2R), after training of any length."""
        return min(self.epochs_lost() * self.shift, 2 * self.radius)

    def decay(self, steps: int) -> float:
        """Return c^steps, rounded up and never below 1e-300."""
        return max(self.contraction**steps * (1 + _ROUNDING), 1e-300)

    def epochs_lost(self, epochs: int | None = None) -> float:
        """Return (1 - c^{T n/b}) / (1 - c^{n/b}), with T infinite where it is not given."""
        rate = self.contraction
        if rate == 1:
            if epochs is None:
                raise ParameterError("weight_decay", "above 0 for unlimited training")
            return float(epochs)
        exponent = self.batches * (math.log1p(rate - 1) if rate > 0.5 else math.log(rate))
        top = 1.0 if epochs is None else -math.expm1(epochs * exponent)
        return top / -math.expm1(exponent) * (1 + _ROUNDING)

    def divergence_factor(self, distance: float) -> float:
        """Return Z^2 / (2 eta sigma^2), the Renyi divergence at order 1 before any decay."""
        spread = 2 * self.learning_rate * self.noise_scale**2
        return distance * distance / spread * (1 + _ROUNDING)

    def amplification(self, steps: int, *, sharp: bool = False) -> float:
        """Return c^{2K}, or the sharp c^{2K} (1 - c^2) / (1 - c^{2K}) of Lemma 2.6's source."""
        rate = self.contraction
        if rate == 1:
            return 1 / steps
        loose = self.decay(2 * steps)
        if not sharp:
            return loose
        lost = -math.expm1(2 * steps * math.log(rate))
        return loose * (1 - rate) * (1 + rate) / lost * (1 + _ROUNDING)


class Theorem(Setting, SearchedBound[RenyiGuarantee]):
    """A theorem of the paper, which adds its own parameters to the constants."""

    NOISE: ClassVar[str] = "noise_scale"

    def first_guess(self, *, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """Return the noise_scale that hides one replaced record in one step, about."""
        shift = 2 * self.learning_rate * self.lipschitz / self.batch_size
        return shift / math.sqrt(2 * self.learning_rate) / epsilon


def terms(theorem: str, *extra: Assumption) -> Terms:
    """Return the terms of one theorem of the paper."""
    return Terms(
        neighbours=Neighbours.REPLACEMENT,
        adaptive=False,
        assumptions=(
            *ASSUMPTIONS,
            *enforced(
                "weights are projected to the ball of the stated radius",
                "no earlier iterate of this run was released or stored",
            ),
            *extra,
        ),
        source=f"Chien et al. 2024, {theorem}",
    )

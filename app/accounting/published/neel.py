"""What the two bounds of Delete-to-Descent share (Neel, Roth & Sharifi-Malvajerdi 2021).

Both as restated by Chien et al. 2024, Theorems O.1 and O.2: full-batch gradient descent with step
size 2/(L + m), L = smoothness + weight_decay, m = weight_decay, so that one step contracts by
gamma = (L - m)/(L + m), then Gaussian noise.
"""

import math
from dataclasses import dataclass

from app.accounting.published.bound import SolvedBound
from app.accounting.terms import Neighbours, Terms, asserted, enforced
from app.domain.checks import require_positive, require_steps
from app.domain.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Theorem(SolvedBound):
    """A theorem with the constants, checked once.

    Attributes:
        weight_decay: m, the strong convexity.
        smoothness: of the loss of one record, without weight decay.
        lipschitz: M.
        records: n.
        steps: of the request.
    """

    weight_decay: float
    smoothness: float
    lipschitz: float
    records: int
    steps: int

    def __post_init__(self) -> None:
        for name in ("weight_decay", "smoothness", "lipschitz"):
            require_positive(name, getattr(self, name))
        require_steps("records", self.records)

    @property
    def gamma(self) -> float:
        """Return (L - m)/(L + m)."""
        return self.smoothness / (self.smoothness + 2 * self.weight_decay)

    def reach(self, steps: int) -> float:
        """Return M gamma^I / (m n (1 - gamma^I)), rounded up."""
        power = max(float(self.gamma**steps), 1e-300)
        scale = self.weight_decay * self.records * -math.expm1(steps * math.log(self.gamma))
        return self.lipschitz * power / scale * (1 + 1e-12)

    def check_range(self, epsilon: float) -> None:
        """Refuse an epsilon above log(1/delta)."""
        highest = -math.log(self.delta)
        if epsilon > highest:
            raise ParameterError("epsilon", f"at most log(1/delta) = {highest:g}")


def terms(theorem: str, *extra: str) -> Terms:
    """Return the terms of one theorem."""
    return Terms(
        neighbours=Neighbours.ADD_REMOVE,
        adaptive=False,
        assumptions=(
            *enforced(
                "the loss of one record is convex, smooth and Lipschitz as stated",
                "the step size is 2 / (smoothness + 2 weight_decay)",
                "every gradient after the request came from retained records",
            ),
            *asserted("training ran long enough for the theorem", *extra),
        ),
        source=f"Neel, Roth & Sharifi-Malvajerdi 2021, {theorem}",
    )

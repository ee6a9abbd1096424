"""What the published bounds of noisy full-batch gradient descent share, for convex losses.

One step adds noise of variance 2 eta sigma^2. Distances are for replacement of r records, whose
gradients differ by at most 2 r M / n.
"""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS
from app.accounting.published.bound import SearchedBound
from app.accounting.terms import Neighbours, Terms, enforced
from app.domain.checks import require_noise, require_positive, require_steps


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants.

    Attributes:
        learning_rate: eta.
        weight_decay: lambda, the strong convexity.
        smoothness: beta, of the loss of one record, without weight decay.
        lipschitz: M.
        records: n.
        noise_scale: sigma.
        forgotten: r, the records forgotten together.
    """

    learning_rate: float
    weight_decay: float
    smoothness: float
    lipschitz: float
    records: int
    noise_scale: float
    forgotten: int = 1

    def factor(self) -> float:
        """Return 4 (r M)^2 / (lambda sigma^2 n^2), the divergence at order 1 before any decay."""
        decay = require_positive("weight_decay", self.weight_decay)
        share = require_steps("forgotten", self.forgotten) / require_steps("records", self.records)
        reach = share * require_positive("lipschitz", self.lipschitz)
        reach /= require_noise("noise_scale", self.noise_scale)
        return 4 * reach * reach / decay * (1 + 1e-13)


class Theorem(Setting, SearchedBound[RenyiGuarantee]):
    """A theorem about such descent, which adds its own parameters to the constants."""

    NOISE: ClassVar[str] = "noise_scale"

    def first_guess(self, *, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """Return r M / n."""
        return self.forgotten * self.lipschitz / self.records


def terms(source: str, *specific: str) -> Terms:
    """Return the terms of a theorem that makes these assumptions besides the common ones."""
    return Terms(
        neighbours=Neighbours.REPLACEMENT,
        adaptive=False,
        assumptions=(
            *ASSUMPTIONS,
            *enforced(
                "every step of the lineage used the whole data and added the stated noise",
                *specific,
                "no earlier iterate of this run was released or stored",
            ),
        ),
        source=source,
    )

"""The published bounds of noisy full-batch gradient descent, for convex losses.

One step adds noise of variance 2 eta sigma^2. Distances are for replacement of r records, whose
gradients differ by at most 2 r M / n.

Guarantee: Renyi curve. Neighbouring relation: replacement. Assumptions: 1. as in
``strong_convexity``; 2. those of each theorem; 3. only the final iterate of a run is released.
"""

import math
from dataclasses import dataclass, replace

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS, papers_contraction
from app.accounting.published.bound import ConvexBound, account_of
from app.accounting.terms import Neighbours, Terms, asserted, enforced
from app.domain.checks import require_count, require_noise, require_positive, require_steps
from app.domain.errors import ParameterError


def _terms(source: str, *specific: str) -> Terms:
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


_STATIONARY = _terms(
    "Chien et al. 2024, Theorems P.1 and P.2", "training started from N(0, 2 sigma^2/m I)"
)
_CONVERGED = replace(
    _STATIONARY,
    assumptions=(
        *_STATIONARY.assumptions,
        *asserted("training has converged to its stationary distribution"),
    ),
    reference="the stationary distribution of training without the forgotten records",
)


@dataclass(frozen=True, kw_only=True)
class Theorem(ConvexBound[RenyiGuarantee]):
    """A theorem about such descent.

    Attributes:
        learning_rate: eta.
        noise_scale: sigma.
        forgotten: r, the records forgotten together.
    """

    learning_rate: float
    noise_scale: float
    forgotten: int = 1

    def factor(self) -> float:
        """Return 4 (r M)^2 / (lambda sigma^2 n^2), the divergence at order 1 before any decay."""
        decay = require_positive("weight_decay", self.weight_decay)
        share = require_steps("forgotten", self.forgotten) / require_steps("records", self.records)
        reach = share * require_positive("lipschitz", self.lipschitz)
        reach /= require_noise("noise_scale", self.noise_scale)
        return 4 * reach * reach / decay * (1 + 1e-13)


@dataclass(frozen=True, kw_only=True)
class ChienTheoremP2(Theorem):
    """Langevin unlearning (Chien et al. 2024b; Theorems P.1 and P.2 of Chien et al. 2024).

        epsilon(alpha) = exp(-m eta K / alpha) 4 alpha S^2 M^2 / (m sigma^2 n^2)

    for eta <= 1/L, S = ``forgotten`` records at once, and K = ``steps`` of unlearning after
    training that has converged (asserted), from a start that satisfies a log-Sobolev inequality
    with constant 2 sigma^2/m. P.2 alone (K = 0, T training steps) carries the factor
    1 - exp(-m eta T), at most 1.
    """

    TERMS = _CONVERGED

    steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve after ``steps`` unlearning steps."""
        papers_contraction(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            smoothness=self.smoothness,
        )
        start, steps = self.factor(), require_count("steps", self.steps)
        pace = self.weight_decay * self.learning_rate * steps * (1 - 1e-14)
        return RenyiGuarantee(
            terms=self.TERMS,
            curve=lambda order: start * order * math.exp(-min(pace / order, 650.0)) * (1 + 1e-12),
        )


@dataclass(frozen=True, kw_only=True)
class ChourasiaTheorem51(Theorem):
    """Chourasia & Shah 2023, Theorem 5.1 (G.9 and G.15).

        eps_dd(q) = (4 q M^2/(lambda sigma^2 n^2)) exp(-lambda eta K/2)

    for eta <= 1/(2 (lambda + beta)), K = ``unlearning_steps`` after training of any length, and a
    start drawn from N(0, sigma^2/(lambda (1 - eta lambda/2)) I). The theorem speaks of one record
    at a time; for r records forgotten together M grows to r M, since the gradients differ by at
    most 2 r M/n. ``noisy_gd_convex`` certifies the same process with less than half of this.
    """

    TERMS = _terms(
        "Chourasia & Shah 2023, Theorem 5.1 (G.9, G.15)",
        "the step size is at most 1 / (2 (smoothness + weight_decay))",
        "training started from N(0, sigma^2/(lambda (1 - eta lambda/2)) I)",
    )

    unlearning_steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the deletion guarantee."""
        rate = require_positive("learning_rate", self.learning_rate)
        decay = require_positive("weight_decay", self.weight_decay)
        if rate * 2 * (require_positive("smoothness", self.smoothness) + decay) > 1 + 1e-12:
            raise ParameterError("learning_rate", "at most 1 / (2 (smoothness + weight_decay))")
        steps = require_count("unlearning_steps", self.unlearning_steps)
        left = math.exp(-min(decay * rate * steps / 2 * (1 - 1e-14), 650.0))
        return self.proportional(self.factor() * left * (1 + 1e-12))


chien_theorem_p_2 = account_of(ChienTheoremP2)
chourasia_theorem_5_1 = account_of(ChourasiaTheorem51)

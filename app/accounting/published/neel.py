"""The two bounds of Delete-to-Descent (Neel, Roth & Sharifi-Malvajerdi 2021).

Both as restated by Chien et al. 2024, Theorems O.1 and O.2: full-batch gradient descent with step
size 2/(L + m), L = smoothness + weight_decay, m = weight_decay, so that one step contracts by
gamma = (L - m)/(L + m), then Gaussian noise.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove of one record.
Assumptions: 1. loss and step size as above; 2. training long enough; 3. epsilon at most
log(1/delta).
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

from app.accounting.guarantees import PointGuarantee
from app.accounting.published.bound import ConvexBound, account_of
from app.accounting.terms import Neighbours, Terms, asserted, enforced
from app.domain.checks import require_delta, require_noise, require_positive, require_steps
from app.domain.errors import ParameterError


def _terms(theorem: str, *extra: str) -> Terms:
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


@dataclass(frozen=True, kw_only=True)
class Theorem(ConvexBound[PointGuarantee]):
    """A theorem, its constants checked once; ``steps`` are the request's."""

    delta: float
    noise_std: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("weight_decay", "smoothness", "lipschitz"):
            require_positive(name, getattr(self, name))
        require_steps("records", self.records)
        require_noise("noise_std", self.noise_std)
        require_delta(self.delta)

    @abstractmethod
    def epsilon(self) -> float:
        """Return the theorem's epsilon, rounded up."""

    def guarantee(self) -> PointGuarantee:
        """Return the theorem's epsilon at ``delta``."""
        epsilon, highest = self.epsilon(), -math.log(self.delta)
        if epsilon > highest:
            raise ParameterError("epsilon", f"at most log(1/delta) = {highest:g}")
        return PointGuarantee(terms=self.TERMS, at_epsilon=epsilon, at_delta=self.delta)

    @property
    def gamma(self) -> float:
        """Return (L - m)/(L + m)."""
        return self.smoothness / (self.smoothness + 2 * self.weight_decay)

    def reach(self, steps: int) -> float:
        """Return M gamma^I / (m n (1 - gamma^I)), rounded up, in units of the noise."""
        power = max(float(self.gamma**steps), 1e-300)
        scale = self.weight_decay * self.records * -math.expm1(steps * math.log(self.gamma))
        return self.lipschitz * power / scale * (1 + 1e-12) / self.noise_std


@dataclass(frozen=True, kw_only=True)
class Theorem9(Theorem):
    """With a secret state (Theorem 9; Chien et al. 2024, O.1); ``steps`` is I.

        sigma = 4 sqrt(2) M gamma^I
                / (m n (1 - gamma^I) (sqrt(log(1/delta) + eps) - sqrt(log(1/delta))))

    The noise-free weights are kept and unlearned further at the next request. That secret state is
    what Chourasia & Shah 2023, Theorem 3.2, breaks: a baseline, not a mechanism of this service.
    Training must take I + log(2Rmn/2M)/log(1/gamma) steps.
    """

    TERMS = _terms("Theorem 9", "the noise-free weights that are kept are never released")

    def epsilon(self) -> float:
        """Return k^2 + 2 k sqrt(log(1/delta)), k = 4 sqrt(2) M gamma^I / (m n (1 - gamma^I) sigma).

        That is the sigma above, solved for eps.
        """
        ratio = 4 * math.sqrt(2) * self.reach(require_steps("steps", self.steps))
        return (ratio * ratio + 2 * ratio * math.sqrt(-math.log(self.delta))) * (1 + 1e-13)


@dataclass(frozen=True, kw_only=True)
class Theorem28(Theorem):
    """Without a secret state (Theorem 28; Chien et al. 2024, O.2).

        sigma = 8 M gamma^I / (m n (1 - gamma^I) (sqrt(2 log(2/delta) + 3 eps)
                                                  - sqrt(2 log(2/delta) + 2 eps)))
        I >= log(sqrt(2 d)/((1 - gamma) (sqrt(2 log(2/delta) + eps) - sqrt(2 log(2/delta)))))
             / log(1/gamma)

    The i-th request runs I + log(log(4 d i/delta))/log(1/gamma) steps from the noisy weights;
    ``steps`` is that total, ``request`` is i and ``dimension`` is d.
    """

    TERMS = _terms("Theorem 28")

    dimension: int
    request: int = 1

    def epsilon(self) -> float:
        """Return the theorem's epsilon.

        With k = 8 M gamma^I / (m n (1 - gamma^I) sigma) and a = 2 log(2/delta), the condition on
        sigma is sqrt(a + 3 eps) - sqrt(a + 2 eps) >= k, or eps >= 5 k^2 + 2 k sqrt(a + 6 k^2). The
        condition on I asks for another; the larger of the two holds.
        """
        effective, log_term = self._effective_steps(), 2 * math.log(2 / self.delta)
        ratio = 8 * self.reach(effective)
        by_noise = 5 * ratio * ratio + 2 * ratio * math.sqrt(log_term + 6 * ratio * ratio)
        gap = self.gamma**effective / (1 - self.gamma) * math.sqrt(2 * self.dimension)
        return max(by_noise, gap * gap + 2 * gap * math.sqrt(log_term)) * (1 + 1e-12)

    def _effective_steps(self) -> int:
        """Return I: the steps that remain after those the theorem spends on the noise."""
        largest = require_steps("dimension", self.dimension)
        largest *= require_steps("request", self.request)
        spent = math.log(math.log(4 * largest / self.delta)) / -math.log(self.gamma)
        effective = math.floor(require_steps("steps", self.steps) - spent)
        if effective < 1:
            raise ParameterError("steps", f"at least {math.ceil(spent) + 1} for this theorem")
        return effective


theorem_9 = account_of(Theorem9)
theorem_28 = account_of(Theorem28)

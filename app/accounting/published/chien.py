"""The bounds of Chien et al. 2024 for projected noisy SGD on fixed batches.

Their printed bounds divide by 2 eta sigma^2 although the algorithm's noise, of variance
2 eta sigma^2, gives 4 eta sigma^2 (``projected_noisy_sgd`` uses it): twice too large, and kept
here because these accountants reproduce the paper. Distances are for replacement.

Guarantee: Renyi curve. Neighbouring relation: replacement. Assumptions: 1. as in
``strong_convexity``; 2. projection to radius R; 3. only the final iterate of a run is released;
4. those of each theorem.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.accounting.guarantees import RenyiGuarantee
from app.accounting.histories.strong_convexity import ASSUMPTIONS, papers_contraction
from app.accounting.published.bound import Bound, account_of
from app.accounting.terms import Assumption, Neighbours, Terms, asserted, enforced
from app.domain.checks import require_count, require_positive, require_steps
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


def _terms(theorem: str, *extra: Assumption) -> Terms:
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


@dataclass(frozen=True, kw_only=True)
class Theorem32(Setting, Bound[RenyiGuarantee]):
    """Training of T = ``training_epochs``, K = ``epochs`` of unlearning, fixed batches.

        epsilon(alpha) = (alpha - 1/2)/(alpha - 1) (e1(2 alpha) + e2(2 alpha))
        e1(alpha) = alpha (2R)^2 c^{2Tn/b} / (2 eta sigma^2)
        e2(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)
        Z = 2R c^{Tn/b} + min((1 - c^{Tn/b})/(1 - c^{n/b}) 2 eta M/b, 2R)

    The weak triangle inequality pays for comparing with plain training on the other data, whose
    last K epochs did not happen; against the same pipeline (``projected_noisy_sgd``) it is not
    needed.
    """

    TERMS = replace(
        _terms("Theorem 3.2"),
        reference="training for the same epochs, from the same start, without the forgotten record",
    )

    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve after ``epochs`` of unlearning."""
        before = require_steps("training_epochs", self.training_epochs) * self.batches
        after = require_steps("epochs", self.epochs) * self.batches
        widest = 2 * self.radius
        distance = widest * self.decay(before)
        distance += min(self.epochs_lost(self.training_epochs) * self.shift, widest)
        first = self.divergence_factor(widest) * self.amplification(before)
        second = self.divergence_factor(distance) * self.amplification(after)

        def curve(order: float) -> float:
            return (order - 0.5) / (order - 1) * 2 * order * (first + second) * (1 + 1e-14)

        return RenyiGuarantee(terms=self.TERMS, curve=curve)


@dataclass(frozen=True, kw_only=True)
class Corollary37(Setting, Bound[RenyiGuarantee]):
    """K = ``epochs`` of unlearning after training, fixed batches.

        epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)
        Z = min(2 eta M/(b (1 - c^{n/b})), 2R)

    ``sharp`` puts c^{2K'} (1 - c^2) / (1 - c^{2K'}), K' = Kn/b, in place of c^{2K'}; the authors'
    code does so for all requests but the first. The paper assumes converged training; against the
    same pipeline on the other data no such assumption is needed, because Lemma 3.3 holds for any T.
    """

    TERMS = _terms("Corollary 3.7")

    epochs: int
    sharp: bool = False

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        steps = require_steps("epochs", self.epochs) * self.batches
        factor = self.divergence_factor(self.drift) * self.amplification(steps, sharp=self.sharp)
        return self.proportional(factor)


@dataclass(frozen=True, kw_only=True)
class Corollary38(Setting, Bound[RenyiGuarantee]):
    """Batches drawn at random, requests that do not depend on them, K = ``epochs``.

        epsilon(alpha) = log E_j exp(alpha (alpha - 1) Z_j^2 c^{2Kn/b} / (2 eta sigma^2))
                         / (alpha - 1)
        Z_j = min(c^{n/b - j - 1} 2 eta M/(b (1 - c^{n/b})), 2R)     j uniform, n/b positions

    The partition is uniform, secret, and the request was chosen without knowledge of it.
    """

    TERMS = _terms(
        "Corollary 3.8",
        *asserted("the request was chosen without knowledge of the secret partition into batches"),
    )

    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        amplification = self.amplification(require_steps("epochs", self.epochs) * self.batches)
        reach = self.epochs_lost() * self.shift
        factors = [
            self.divergence_factor(min(self.decay(later) * reach, 2 * self.radius)) * amplification
            for later in range(self.batches)
        ]
        highest = max(factors)

        def curve(order: float) -> float:
            # log-mean-exp around the largest term.
            scale = order * (order - 1)
            total = math.fsum(math.exp(scale * (factor - highest)) for factor in factors)
            mean = math.log(total / len(factors)) / (order - 1)
            return max(0.0, order * highest + mean) + 1e-13 * order * highest + 1e-15 / (order - 1)

        return RenyiGuarantee(terms=self.TERMS, curve=curve)


@dataclass(frozen=True, kw_only=True)
class Corollary310(Setting, Bound[RenyiGuarantee]):
    """Merely convex losses, c = 1: alpha Z^2 b / (2 eta sigma^2 K n), Z = min(2 eta M T/b, 2R)."""

    TERMS = _terms("Corollary 3.10")

    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        if self.weight_decay != 0:
            raise ParameterError("weight_decay", "0, or use corollary 3.7")
        steps = require_steps("epochs", self.epochs) * self.batches
        trained = require_steps("training_epochs", self.training_epochs)
        distance = min(trained * self.shift, 2 * self.radius)
        return self.proportional(self.divergence_factor(distance) / steps * (1 + 1e-15))


@dataclass(frozen=True, kw_only=True)
class Theorem311(Setting, Bound[RenyiGuarantee]):
    """Sequential requests of one record each, with Corollary 3.7, for the union of all of them.

        Z(1) = Z,   Z(s+1) = min(c^{K_s n/b} Z(s) + Z, 2R)
        epsilon(alpha) = alpha Z(S)^2 c^{2 K_S n/b} / (2 eta sigma^2)   for the last request

    ``epochs`` lists K_1 .. K_S. Z and ``sharp`` are as in Corollary 3.7.
    """

    TERMS = _terms("Theorem 3.11")

    epochs: Sequence[int]
    sharp: bool = False

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        if not self.epochs:
            raise ParameterError("epochs", "a list with one number for each request")
        *earlier, last = (require_steps("epochs", count) * self.batches for count in self.epochs)
        distance = self.drift
        for steps in earlier:
            distance = min(self.decay(steps) * distance + self.drift, 2 * self.radius)
        factor = self.divergence_factor(distance) * self.amplification(last, sharp=self.sharp)
        return self.proportional(factor)


@dataclass(frozen=True, kw_only=True)
class CorollaryJ1(Setting, Bound[RenyiGuarantee]):
    """One request for records in several batches, T = ``training_epochs`` and K = ``epochs``.

        Z = min((1 - c^{Tn/b})/(1 - c^{n/b}) sum_g c^{n/b - j_g - 1} 2 eta M S_g / b, 2R)
        epsilon(alpha) = alpha Z^2 c^{2Kn/b} / (2 eta sigma^2)

    The paper prints (1 - c^T)/(1 - c); an epoch contracts by c^{n/b}, as its own Lemma 3.3 says.
    ``records_by_batch`` lists [batch number, how many] pairs.
    """

    TERMS = _terms("Corollary J.1")

    records_by_batch: Sequence[Sequence[int]]
    training_epochs: int
    epochs: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of the release."""
        steps = require_steps("epochs", self.epochs) * self.batches
        lost = self.epochs_lost(require_steps("training_epochs", self.training_epochs))
        drift = 0.0  # after the first epoch
        for batch, count in self.records_by_batch:
            if require_count("records_by_batch", batch) >= self.batches:
                raise ParameterError("records_by_batch", f"batch numbers below {self.batches}")
            if require_steps("records_by_batch", count) > self.batch_size:
                raise ParameterError("records_by_batch", f"at most {self.batch_size} of one batch")
            drift += self.decay(self.batches - batch - 1) * self.shift * count
        if drift == 0:
            raise ParameterError("records_by_batch", "at least one pair")
        distance = min(lost * drift * (1 + 1e-13), 2 * self.radius)
        return self.proportional(self.divergence_factor(distance) * self.amplification(steps))


theorem_3_2 = account_of(Theorem32)
corollary_3_7 = account_of(Corollary37)
corollary_3_8 = account_of(Corollary38)
corollary_3_10 = account_of(Corollary310)
theorem_3_11 = account_of(Theorem311)
corollary_j_1 = account_of(CorollaryJ1)

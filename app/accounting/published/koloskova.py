"""The bounds of Koloskova et al. 2025, for any two starts.

Assumptions: as the mechanism of the same name in ``app.accounting``.

DP-SGD with generic group privacy, as in section 5.3: (eps_1, delta_1) for one record gives
(k eps_1, k e^{(k-1) eps_1} delta_1) for k of them (Vadhan 2017, Lemma 2.2; the paper prints
k e^{k eps_1} delta_1, a little larger). Neighbouring relation there: add_remove. ``dp_sgd`` itself,
with its mixture of Gaussians, is tight.
"""

import math
from dataclasses import dataclass, replace

from app.accounting import dp_sgd, gaussian, gradient_clipping, output_perturbation
from app.accounting.chains.noisy_chain import prefix_mu
from app.accounting.guarantees import PointGuarantee, RenyiGuarantee
from app.accounting.published.bound import Bound, account_of
from app.accounting.search import smallest
from app.accounting.terms import any_start
from app.domain import checks
from app.domain.checks import require_delta, require_steps
from app.domain.errors import CalibrationError, ParameterError

UNREGULARISED_LIMIT = 0.257
REGULARISED_LIMIT = 3.0


@dataclass(frozen=True, kw_only=True)
class Theorem41(Bound[PointGuarantee]):
    """Gradient clipping in closed form, with each parameter constant.

        lambda = 0:             sigma^2 = 9 log(1/delta)/(eps^2 T) (C0 + C1 gamma T)^2
        1/2 < gamma lambda < 1: sigma^2 = 72 gamma lambda log(1/delta)/eps^2
                                          (C0 (1 - gamma lambda)^T + C1/lambda)^2

    The theorem is stated for eps < 3 log(1/delta). Its first case does not hold that far: the noise
    gives mu = 2 eps/(3 sqrt(log(1/delta))), whose true epsilon exceeds eps from 0.95 log(1/delta)
    on at delta = 1e-5, from 0.55 at 1e-15, and from 0.257 as delta goes to 0. Mironov's conversion
    proves it up to 0.257 log(1/delta) for every delta, the limit here. The second case gives
    mu <= eps/(3 sqrt(log(1/delta))) and holds as stated.
    """

    TERMS = any_start(
        "Koloskova et al. 2025, Theorem 4.1, its first case up to eps = 0.257 log(1/delta)"
    )

    delta: float
    initial_clip: float
    gradient_clip: float
    learning_rate: float
    weight_decay: float
    noise_std: float
    steps: int

    def guarantee(self) -> PointGuarantee:
        """Return the theorem's epsilon at ``delta``, rounded up."""
        epsilon = self._product() / checks.require_noise("noise_std", self.noise_std) * (1 + 1e-13)
        limit = UNREGULARISED_LIMIT if self.weight_decay == 0 else REGULARISED_LIMIT
        highest = -limit * math.log(self.delta)
        if epsilon >= highest:
            raise ParameterError("epsilon", f"below {limit} log(1/delta) = {highest:g}")
        return PointGuarantee(terms=self.TERMS, at_epsilon=epsilon, at_delta=self.delta)

    def _product(self) -> float:
        root = math.sqrt(-math.log(checks.require_delta(self.delta)))
        start = checks.require_positive("initial_clip", self.initial_clip)
        clip = checks.require_non_negative("gradient_clip", self.gradient_clip)
        rate = checks.require_positive("learning_rate", self.learning_rate)
        decay = rate * checks.require_non_negative("weight_decay", self.weight_decay)
        steps = checks.require_steps("steps", self.steps)
        if decay == 0:
            return 3 * root / math.sqrt(steps) * (start + clip * rate * steps)
        if not 0.5 < decay < 1:
            raise ParameterError("weight_decay", "0, or between 0.5 and 1 times 1 / learning_rate")
        left = start * (1 - decay) ** steps + clip / self.weight_decay
        return math.sqrt(72 * decay) * root * left


@dataclass(frozen=True, kw_only=True)
class TheoremA9(Bound[RenyiGuarantee]):
    """Gradient clipping by Renyi divergence, with each parameter constant.

        D_q <= (q/2) [rho^T 2 C0 + s (1 - rho^T)/(1 - rho)]^2
               / [sigma^2 (1 - rho^{2T})/(1 - rho^2)]

    with rho = 1 - gamma lambda, s = 2 gamma C1. In the theorem the products run over the steps
    after t; the printed index is right for constant rho only. Its choice of shifts can make an
    intermediate distance negative; the value is then still an upper bound, because an earlier
    prefix (``gradient_clipping``, running minimum) is smaller.
    """

    TERMS = any_start("Koloskova et al. 2025, Theorem A.9")

    initial_clip: float
    gradient_clip: float
    learning_rate: float
    weight_decay: float
    noise_std: float
    steps: int

    def guarantee(self) -> RenyiGuarantee:
        """Return the Renyi curve of ``steps`` equal steps."""
        size = gradient_clipping.step_size(
            gradient_clip=self.gradient_clip,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
        )
        mu = prefix_mu(
            distance=2 * checks.require_positive("initial_clip", self.initial_clip),
            contraction=size.contraction,
            shift=size.shift,
            noise_std=checks.require_noise("noise_std", self.noise_std),
            steps=checks.require_steps("steps", self.steps),
        )
        return self.proportional(mu * mu / 2 * (1 + 1e-15))


@dataclass(frozen=True, kw_only=True)
class Theorem42(Bound[PointGuarantee]):
    """Model clipping with a constant contraction coefficient.

        delta_T = theta_eps(2 C0/sigma0) theta_eps(2 C2/sigma)^T

    which keeps eps where ``model_clipping`` may use the larger eps_t, and needs 3 to 4 times the
    steps.
    """

    TERMS = any_start("Koloskova et al. 2025, Theorem 4.2")

    epsilon: float
    initial_clip: float
    model_clip: float
    noise_std: float
    steps: int
    initial_noise_std: float = 0.0

    def guarantee(self) -> PointGuarantee:
        """Return the point (epsilon, delta_T), rounded up."""
        epsilon = checks.require_positive("epsilon", self.epsilon)
        radius = checks.require_positive("initial_clip", self.initial_clip)
        separation = 2 * checks.require_positive("model_clip", self.model_clip)
        separation /= checks.require_noise("noise_std", self.noise_std)
        start = 0.0
        if checks.require_non_negative("initial_noise_std", self.initial_noise_std) > 0:
            noise = checks.require_noise("initial_noise_std", self.initial_noise_std)
            start = gaussian.rounded_log_delta(mu=2 * radius / noise, epsilon=epsilon)
        factor = gaussian.rounded_log_delta(mu=separation * (1 + 1e-15), epsilon=epsilon)
        log_delta = start + checks.require_steps("steps", self.steps) * factor
        delta = min(1.0, math.exp(max(log_delta, -700.0)) * (1 + 1e-12))
        return PointGuarantee(terms=self.TERMS, at_epsilon=float(epsilon), at_delta=delta)


@dataclass(frozen=True, kw_only=True)
class ClassicalOutputPerturbation(Bound[PointGuarantee]):
    """Output perturbation with the classical Gaussian mechanism.

        sigma^2 = 8 C0^2 log(1.25/delta) / eps^2        for eps <= 1

    (Dwork & Roth 2014, Theorem A.1, stated for eps < 1; Balle & Wang 2018 show that it still holds
    at 1, where the paper uses it.) ``output_perturbation`` needs 1.30 times less noise at
    (1, 1e-5).
    """

    TERMS = replace(
        output_perturbation.TERMS,
        source="Koloskova et al. 2025, section 4.2; Dwork & Roth 2014, Theorem A.1",
    )

    delta: float
    initial_clip: float
    noise_std: float

    def guarantee(self) -> PointGuarantee:
        """Return the classical epsilon."""
        spread = math.sqrt(8 * math.log(1.25 / checks.require_delta(self.delta)))
        epsilon = checks.require_positive("initial_clip", self.initial_clip) * spread
        epsilon *= (1 + 1e-14) / checks.require_noise("noise_std", self.noise_std)
        if epsilon > 1 + 1e-6:
            raise ParameterError("epsilon", "at most 1")
        return PointGuarantee(terms=self.TERMS, at_epsilon=epsilon, at_delta=self.delta)


theorem_4_1 = account_of(Theorem41)
theorem_a_9 = account_of(TheoremA9)
theorem_4_2 = account_of(Theorem42)
classical_output_perturbation = account_of(ClassicalOutputPerturbation)


@dataclass(frozen=True, kw_only=True)
class GroupPrivacy(Bound[PointGuarantee]):
    """The parameters of ``dp_sgd``, and delta."""

    TERMS = replace(
        dp_sgd.TERMS, source="Koloskova et al. 2025, section 5.3; Vadhan 2017, Lemma 2.2"
    )

    delta: float
    noise_multiplier: float
    sampling_rate: float
    steps: int
    group_size: int

    def guarantee(self) -> PointGuarantee:
        """Return the best epsilon that group privacy gives at ``delta``."""
        log_delta = math.log(require_delta(self.delta))
        group = require_steps("group_size", self.group_size)
        single = dp_sgd.account(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            group_size=1,
        )

        def single_delta(below: float) -> float:
            """Return delta_1 at ``below`` nats below delta."""
            return max(math.exp(log_delta - below), min(self.delta, dp_sgd.SMALLEST_DELTA))

        def enough(below: float) -> bool:
            """Say whether that delta_1 is small enough."""
            epsilon = single.epsilon(delta=single_delta(below))
            return (math.log(group) + (group - 1) * epsilon) * (1 + 1e-14) <= below

        furthest = max(0.0, log_delta - math.log(dp_sgd.SMALLEST_DELTA))
        if not enough(furthest):
            raise CalibrationError("generic group privacy needs a delta_1 below 1e-10")
        # Whatever was found passed the test, so the pair is a valid one for a curve of any shape.
        below = smallest(enough, highest=furthest, width=1e-7)
        epsilon = group * single.epsilon(delta=single_delta(below)) * (1 + 1e-15)
        return PointGuarantee(terms=self.TERMS, at_epsilon=epsilon, at_delta=self.delta)


group_privacy = account_of(GroupPrivacy)

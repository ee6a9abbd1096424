"""DP-SGD with generic group privacy, as Koloskova et al. 2025, section 5.3, use it.

(eps_1, delta_1) for one record gives (k eps_1, k e^{(k-1) eps_1} delta_1) for k of them (Vadhan
2017, Lemma 2.2; the paper prints k e^{k eps_1} delta_1, a little larger). The guarantee for one
record is ``dp_sgd``'s. ``dp_sgd`` itself, with its mixture of Gaussians, is tight.

Guarantee: one point (epsilon, delta). Neighbouring relation: add_remove. Assumptions: as
``dp_sgd``.
"""

import math
from dataclasses import dataclass, replace

from app.accounting import dp_sgd
from app.accounting.guarantees import PointGuarantee
from app.accounting.published.bound import Bound, account_of
from app.accounting.search import smallest
from app.domain.checks import require_delta, require_steps
from app.domain.errors import CalibrationError


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

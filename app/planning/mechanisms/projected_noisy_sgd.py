"""Projected noisy SGD (Chien et al. 2024, Algorithm 1), for strongly convex losses.

    x <- project(x - learning_rate grad f(x; batch) + N(0, noise_std^2 I))

in training and in unlearning; projection is optional. The paper writes noise_std^2 = 2 eta sigma^2
and starts from the drift; here the noise of the whole lineage counts, training included.
Guarantee: mu-GDP, by ``accounting.histories.history_account``. Source: docs/guarantees.md, section
6.3.
"""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting.histories.history_account import HistoryAccountant, terms_of
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.policy import Policy
from app.planning.mechanisms.tracked import Tracked, fewest_steps, refuse_more
from app.planning.policy_parameters import only, refuse_unless_named, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class ProjectedNoisySgd(Tracked):
    """Noise at every step, from the first of training on."""

    name: ClassVar[str] = "projected_noisy_sgd"
    terms: ClassVar[Terms] = terms_of(
        "Chien et al. 2024, Algorithm 1 and Lemma 3.3; "
        "Bok, Su & Altschuler 2024 for the trade-off function"
    )

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the steps that a lineage trained with noise must go on for."""
        fixed = only(policy.parameters, "noise_std", "steps", "radius")
        lineage = cls.lineage(shape, radius=fixed.get("radius"))
        if lineage.is_new:
            refuse_unless_named(policy, cls)
        lineage.refuse_without_noise()
        noise_std = require_positive("noise_std", fixed.get("noise_std", lineage.step_noise()))
        accountant = HistoryAccountant(lineage.trained(noise_std=noise_std), cls.terms)
        steps = fewest_steps(
            lambda count: accountant.meets(**policy.target, steps=count, noise_std=noise_std),
            least=whole_steps(fixed, 0),
        )
        refuse_more(fixed, steps)
        return cls.offer(policy, shape, lineage, accountant, steps=steps, noise_std=noise_std)

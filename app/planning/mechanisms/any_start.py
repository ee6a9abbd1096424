"""What the mechanisms that forget any start have in common: clips and noise in a frame.

By default each ends with noise of the size of a fresh initialisation, one unit per coordinate of
the reference frame. The information bound of docs/guarantees.md says that no such release keeps
more of the original, so any other place to end costs accuracy, and what the model then scores comes
from fine-tuning within the budget.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from app.accounting.guarantees import GaussianGuarantee, Guarantee
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import Dimension, Mechanism
from app.planning.policy_parameters import numbers
from app.planning.quote import Quote
from app.planning.shape import ModelShape

DEFAULT_INITIAL_CLIP = 1.0
DEFAULT_LEARNING_RATE = 0.1
INITIALISATION_STD = 1.0
MOST_STEPS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class AnyStart(Mechanism):
    """A mechanism whose guarantee does not depend on how the weights came about.

    Attributes:
        dimension: how many weights the plan was made for; None counts in real arithmetic.
    """

    fine_tunes: ClassVar[bool] = True
    in_frame: ClassVar[bool] = True
    divides: ClassVar[bool] = True

    dimension: Dimension | None = None

    def counted(self) -> int | None:
        """Return how many trained numbers were counted; None in real arithmetic."""
        return self.dimension

    def offer(
        self,
        policy: Policy,
        shape: ModelShape,
        guarantee: Guarantee,
        *,
        steps: int,
        variance: float,
        settings: Mapping[str, float] | None = None,
    ) -> Quote:
        """Return the quote of these parameters.

        ``variance`` is that of the noise in one released coordinate; ``settings`` hold what the
        update rule needs beside the parameters.
        """
        budget_steps = budget_of(policy, shape, needed=steps)
        bits: float | None = None
        if isinstance(guarantee, GaussianGuarantee):
            bits = guarantee.surviving_information_bits()
        return self.quoted(
            guarantee,
            steps * shape.batch_size,
            gradient_computations=budget_steps * shape.batch_size,
            noise_per_coordinate=math.sqrt(variance),
            surviving_information_bits=bits,
            settings=settings or {},
        )


def budget_of(policy: Policy, shape: ModelShape, *, needed: int = 0) -> int:
    """Return how many steps the budget allows; refuse needed or fixed steps beyond it.

    A budget that the policy leaves to the recipe does not bind later runs: as records leave, an
    epoch has ever fewer steps, and the model could not forget any more.
    """
    steps = math.floor((policy.budget_epochs or shape.recipe_epochs) * shape.steps_per_epoch)
    fixed = numbers({"steps": policy.parameters.get("steps", 0)})["steps"]
    if policy.budget_epochs is None and shape.earlier_releases:
        steps = max(1, steps, needed, int(fixed))
    if steps < 1:
        raise PlanError("budget_epochs allows no step at all: raise it")
    planned = max(needed, fixed)
    if planned > steps:
        raise PlanError(
            f"the plan takes {planned:g} noisy steps but budget_epochs allows {steps}: raise "
            "budget_epochs or lower steps"
        )
    if planned > MOST_STEPS:
        raise PlanError(f"a run takes at most {MOST_STEPS:,} noisy steps, not {planned:g}")
    return steps

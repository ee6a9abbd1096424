"""Gradient descent on a regularised loss, with noise at every step or once at its end.

    x <- project(x - learning_rate (g + weight_decay x) + N(0, noise_std^2 I))

What every mechanism of tracked training has in common (docs/guarantees.md, sections 6 and 7); they
differ in their accountants. g is the gradient of the mean loss over a fixed batch, divided by the
batch size that it had before records left. A step is computed in float64; noise comes after the
move, and their sum is rounded to the public grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from app.accounting.chains.noisy_chain import one_minus_product
from app.accounting.guarantees import Guarantee
from app.domain.errors import PlanError, TargetNotMetError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.mechanism import AccountOf, Descending
from workers.noise.generators import NoiseSource
from workers.training.noisy_phase import Conditions
from workers.training.team import ALONE, Team
from workers.training.vectors import clip_, move_, require_dimension


@dataclass(frozen=True)
class Descent:
    """One step of it; weights are projected to the ball of this radius around 0, if it has one."""

    learning_rate: float
    weight_decay: float
    noise_std: float = 0.0
    radius: float | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, float]) -> "Descent":
        """Return the descent that a plan's settings describe."""
        return cls(
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            noise_std=settings.get("noise_std", 0.0),
            radius=settings.get("radius"),
        )

    def step_(
        self,
        position: torch.Tensor,
        gradient: torch.Tensor,
        noise: NoiseSource,
        team: Team = ALONE,
    ) -> None:
        """Take one step in place; ``position`` is float64 [size], ``gradient`` of that size."""
        contraction = one_minus_product(self.learning_rate, self.weight_decay)
        move_(position, gradient, contraction=contraction, rate=self.learning_rate)
        if self.noise_std > 0:
            noise.add_(position, self.noise_std)
        if self.radius is not None:
            clip_(position, self.radius, team)


@dataclass(frozen=True)
class DescentRule:
    """So many steps, then the release's own noise, if it has any.

    Attributes:
        steps: how many a run takes; may be 0.
        release_noise_std: per coordinate, added once, at release; 0 for none.
        dimension: how many weights the accountant counted; None where it does not matter.
    """

    descent: Descent
    steps: int
    account: AccountOf
    release_noise_std: float = 0.0
    dimension: int | None = None

    def begin(self, position: torch.Tensor, conditions: Conditions) -> "DescentRun":
        """Return the run; without steps, ``position`` (float64 [size]) gets its noise here."""
        require_dimension(self.dimension, position, conditions.team)
        planned = self.account(self.steps)
        if planned is None or not planned.meets(epsilon=conditions.epsilon, delta=conditions.delta):
            raise TargetNotMetError(f"{self.steps} steps do not meet the target")
        run = DescentRun(self, conditions)
        run.release_if_due(position)
        return run


class DescentRun:
    """One run: counts each step it takes, and asks the accountant what they are worth."""

    def __init__(self, rule: DescentRule, conditions: Conditions) -> None:
        self._rule = rule
        self._conditions = conditions
        self._released = False
        self.steps = 0

    @property
    def met(self) -> bool:
        """Whether all steps were taken, the release's noise was added, and the target is met."""
        guarantee = self.guarantee() if self._released else None
        target = self._conditions
        return guarantee is not None and guarantee.meets(epsilon=target.epsilon, delta=target.delta)

    def guarantee(self) -> Guarantee | None:
        """Return what the steps taken guarantee; None while that is nothing."""
        return self._rule.account(self.steps)

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step in place."""
        given = self._conditions
        self._rule.descent.step_(position, gradient, given.noise, given.team)
        self.steps += 1
        self.release_if_due(position)

    def release_if_due(self, position: torch.Tensor) -> None:
        """Add the release's noise once all steps are taken."""
        if self.steps < self._rule.steps:
            return
        if self._rule.release_noise_std > 0:
            self._conditions.noise.add_(position, self._rule.release_noise_std)
        self._released = True


def from_plan(plan: Plan) -> DescentRule:
    """Return the rule of a plan; its guarantee is that of the whole history.

    Raises:
        PlanError: the plan's mechanism is not one of descent.
        ParameterError: the plan's history is malformed, or a parameter is out of its range.
    """
    mechanism = mechanism_of(plan)
    if not isinstance(mechanism, Descending):
        raise PlanError(f"{plan.mechanism} has another rule")
    return DescentRule(
        descent=Descent.from_settings(plan.settings),
        steps=int(plan.settings["steps"]),
        account=mechanism.account_by_step(plan),
        release_noise_std=plan.settings.get("release_noise_std", 0.0),
        dimension=mechanism.counted(),
    )

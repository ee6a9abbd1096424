"""DP-SGD's rule, whose runs change nothing, and what a run is that is over when it has begun."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch

from app.accounting.guarantees import Guarantee
from app.domain.errors import SealedStateError, TargetNotMetError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.mechanism import Mechanism
from workers.training.noisy_phase import Conditions


@dataclass(frozen=True)
class Stepless:
    """A run without steps, which met its target at its beginning."""

    steps: ClassVar[int] = 0
    met: ClassVar[bool] = True

    met_by: Guarantee

    def guarantee(self) -> Guarantee:
        """Return what the beginning guarantees."""
        return self.met_by

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> NoReturn:  # noqa: ARG002
        """Refuse: there are no steps."""
        raise SealedStateError("this mechanism takes no steps")


@dataclass(frozen=True)
class Unchanged:
    """Leaves the weights as they are: their training had noise for the forgotten records already.

    Training itself is ``workers.training.dp_sgd.training``.
    """

    steps: ClassVar[int] = 0

    mechanism: Mechanism

    def begin(
        self,
        position: torch.Tensor,  # noqa: ARG002
        conditions: Conditions,
    ) -> Stepless:
        """Change nothing."""
        guarantee = self.mechanism.account()
        if not guarantee.meets(epsilon=conditions.epsilon, delta=conditions.delta):
            raise TargetNotMetError("the training's noise does not cover so many records")
        return Stepless(guarantee)


def from_plan(plan: Plan) -> Unchanged:
    """Return the rule of a plan; ``ParameterError`` if a parameter is missing or unknown."""
    return Unchanged(mechanism_of(plan))

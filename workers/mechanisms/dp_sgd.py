"""DP-SGD with group privacy: forgetting takes no step, because training had noise for it already.

The weights stay as they are (Koloskova et al. 2025, section 5.3). Training itself is
``workers.training.private``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from app.accounting.dp_sgd import NAME, account
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from workers.mechanisms.stepless import Stepless
from workers.noise.generators import NoiseSource

__all__ = ["NAME", "DpSgd"]


@dataclass(frozen=True)
class DpSgd:
    """What the training's noise is worth for a group of records.

    Attributes:
        parameters: of the accountant: those of the training, and ``group_size``, all records that
            were forgotten since.
    """

    steps: ClassVar[int] = 0

    parameters: Mapping[str, Any]

    @classmethod
    def from_plan(cls, plan: Plan) -> "DpSgd":
        """Return the mechanism of a plan."""
        return cls(plan.parameters)

    def begin(
        self,
        position: torch.Tensor,  # noqa: ARG002
        *,
        noise: NoiseSource,  # noqa: ARG002
        epsilon: float,
        delta: float,
    ) -> Stepless:
        """Change nothing; the weights are as private as they were.

        Raises:
            TargetNotMetError: the group budget is spent.
            ParameterError: a parameter is missing, unknown or out of its range.
        """
        guarantee = account(**self.parameters)
        if not guarantee.meets(epsilon=epsilon, delta=delta):
            raise TargetNotMetError("the training's noise does not cover so many records")
        return Stepless(guarantee)

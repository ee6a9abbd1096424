"""Exact training: a linear head is the minimum of its loss over the retained records.

    release the W with |grad f(W)| <= tolerance to which full-batch L-BFGS leads from zeros

The loss is strongly convex, so that nothing is lost by starting anew each time. The records come in
the order of their arrival; no seed, noise or earlier weights enter. Guarantee:
exact and adaptive, by ``accounting.exact``. Source: docs/guarantees.md, section 13.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from app.accounting import exact
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import Deterministic, Needs, Positive
from app.planning.policy_parameters import only, refuse_above_budget
from app.planning.quote import Quote
from app.planning.shape import ModelShape

DEFAULT_TOLERANCE: Final = 1e-6
# Passes over the records until the default tolerance: docs/guarantees.md, section 13.3.
_PASSES: Final = 30


@dataclass(frozen=True, kw_only=True)
class ExactTraining(Deterministic):
    """See the module.

    Attributes:
        regularisation: of the loss: the recipe's weight_decay.
        tolerance: the norm of the gradient at which training stops.
    """

    name: ClassVar[str] = "exact_training"
    needs: ClassVar[Needs] = Needs.LINEAR_HEAD
    terms: ClassVar[Terms] = exact.EXACT_TRAINING

    regularisation: Positive
    tolerance: Positive

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote one training, whose number of passes is an estimate."""
        if shape.convex is None or not shape.trained_here:
            raise PlanError("needs a linear_head that is trained here: its loss has one minimum")
        fixed = only(policy.parameters, "tolerance")
        gradients = _PASSES * shape.retained
        refuse_above_budget(policy, shape, gradients)
        return cls(
            regularisation=shape.convex.weight_decay,
            tolerance=fixed.get("tolerance", DEFAULT_TOLERANCE),
        ).offer(gradients)

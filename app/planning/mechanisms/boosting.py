"""Boosting: trees that are a function of the retained records.

    grow trees one after the other, each on the residuals of those before it (Friedman 2001)

No seed, noise or earlier tree enters, and the records come in the order of their arrival.
Guarantee: exact and adaptive, by ``accounting.exact``. Source: docs/guarantees.md, section 13.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from app.accounting import exact
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.domain.recipes import MOST_EPOCHS
from app.planning.mechanisms.mechanism import Deterministic, Needs, Positive, Whole
from app.planning.policy_parameters import only, refuse_above_budget
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Boosting(Deterministic):
    """See the module; the parameters are the options of ``boosted_trees``.

    With ``patience``, trees are grown until so many in a row have made the loss of the retained
    held-out records no smaller, and those up to the smallest are kept.
    """

    name: ClassVar[str] = "boosting"
    needs: ClassVar[Needs] = Needs.BOOSTED_TREES
    terms: ClassVar[Terms] = exact.BOOSTING
    libraries: ClassVar[tuple[str, ...]] = ("scikit-learn",)
    optional: ClassVar[frozenset[str]] = frozenset({"patience"})

    trees: Whole
    leaves: Whole
    depth: Whole
    smallest_leaf: Whole
    shrinkage: Positive
    patience: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] | None = None

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote one growing, in which each tree reads each record's residual once."""
        if shape.trees is None:
            raise PlanError("needs boosted_trees")
        if not shape.trained_here:
            raise PlanError("imported trees are no function of the records: let them grow here")
        only(policy.parameters)
        options = asdict(shape.trees)
        del options["rows"]
        gradients = shape.gradients_of(shape.retained)
        refuse_above_budget(policy, shape, gradients)
        return cls(**options).offer(gradients)

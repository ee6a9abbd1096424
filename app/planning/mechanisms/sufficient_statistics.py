"""Sufficient statistics: a head is solved from sums over the retained records.

    forget r records: subtract their part of n, sum x, sum x x^T, sum x y^T; solve again

The sums are whole numbers, so that subtraction undoes addition bit for bit. No gradient, no noise.
Guarantee: exact and adaptive, by ``accounting.exact``. Source: docs/guarantees.md, section
13.
"""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting import exact
from app.accounting.terms import Terms
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import Deterministic, Needs, Positive
from app.planning.policy_parameters import only
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(Deterministic):
    """See the module.

    Attributes:
        feature_range: the largest feature that is told from larger ones, which becomes 2^15.
        regularisation: added to the correlation matrix; None: chosen by generalised
            cross-validation, anew in each run.
        target_range: of a regression: the largest target that is told from larger ones, which
            becomes 2^15.
    """

    name: ClassVar[str] = "sufficient_statistics"
    needs: ClassVar[Needs] = Needs.RIDGE_HEAD
    optional: ClassVar[frozenset[str]] = frozenset({"regularisation", "target_range"})
    terms: ClassVar[Terms] = exact.SUFFICIENT_STATISTICS

    feature_range: Positive
    regularisation: Positive | None = None
    target_range: Positive | None = None

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote a solution, which takes no gradient."""
        if shape.ridge is None:
            raise PlanError("needs a ridge_head")
        if not shape.trained_here:
            raise PlanError(
                "imported weights are no function of the records: let it be solved here"
            )
        return cls(
            feature_range=shape.ridge.feature_range,
            regularisation=only(policy.parameters, "regularisation").get("regularisation"),
            target_range=shape.ridge.target_range,
        ).offer(0)

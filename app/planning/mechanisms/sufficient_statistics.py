"""Sufficient statistics: a head is solved from sums over the retained records.

    forget r records: subtract their part of n, sum x, sum x x^T, sum x y^T; solve again

The sums are whole numbers, so that subtraction undoes addition bit for bit. No gradient, no noise.
Guarantee: exact and adaptive, by ``accounting.exact``. Source: docs/guarantees.md, section
13.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Terms
from app.domain.errors import ParameterError, PlanError
from app.domain.heads import ridge_head
from app.domain.policy import Policy
from app.planning.mechanisms.deterministic import Deterministic
from app.planning.mechanisms.mechanism import Needs
from app.planning.mechanisms.ranges import Positive
from app.planning.policy_parameters import only
from app.planning.quote import Quote
from app.planning.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(Deterministic):
    """See the module.

    Attributes:
        feature_range: the largest feature that is told from larger ones, which becomes 2^15.
        regularisation: added to the correlation matrix; None: chosen by generalised
            cross-validation, anew in each run, or not needed.
        classifier: what is computed from the sums; None: the ridge solution.
        target_range: of a regression: the largest target that is told from larger ones, which
            becomes 2^15.
    """

    name: ClassVar[str] = "sufficient_statistics"
    needs: ClassVar[Needs] = Needs.RIDGE_HEAD
    optional: ClassVar[frozenset[str]] = frozenset({"regularisation", "classifier", "target_range"})
    terms: ClassVar[Terms] = exact.SUFFICIENT_STATISTICS

    feature_range: Positive
    regularisation: Positive | None = None
    classifier: Literal["class_means", "discriminant"] | None = None
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
        classifier = shape.ridge.classifier
        plain = classifier == ridge_head.CLASS_MEANS
        fixed = only(policy.parameters, *(() if plain else ("regularisation",)))
        return cls(
            feature_range=shape.ridge.feature_range,
            regularisation=fixed.get("regularisation"),
            classifier=None if classifier == ridge_head.RIDGE else classifier,  # type: ignore[arg-type]
            target_range=shape.ridge.target_range,
        ).offer(0)

    def account(self) -> ExactGuarantee:
        """Return (0, 0); ``ParameterError`` if a parameter is not one of this classifier."""
        others = (ridge_head.CLASS_MEANS, ridge_head.DISCRIMINANT)
        if self.classifier not in (None, *others):
            raise ParameterError("classifier", f"one of {', '.join(others)}")
        if self.classifier == ridge_head.CLASS_MEANS and self.regularisation is not None:
            raise ParameterError("regularisation", "left out for class_means")
        if self.classifier is not None and self.target_range is not None:
            raise ParameterError("target_range", f"left out for {self.classifier}")
        return super().account()

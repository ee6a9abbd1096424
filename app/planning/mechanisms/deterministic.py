"""What the mechanisms for heads have in common that are a function of the retained records."""

from dataclasses import dataclass
from typing import ClassVar

from app.accounting.guarantees import ExactGuarantee
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.plan import TrainingKind
from app.planning.mechanisms.mechanism import Mechanism
from app.planning.quote import Quote


@dataclass(frozen=True, kw_only=True)
class Deterministic(Mechanism):
    """A mechanism whose releases are computed anew, without a seed and without earlier weights.

    Attributes:
        terms: of the guarantee.
    """

    trains_anew: ClassVar[bool] = True
    carries_adaptive: ClassVar[bool] = True
    terms: ClassVar[Terms]

    def account(self) -> ExactGuarantee:
        """Return (0, 0), for parameters above 0."""
        for name, value in self.parameters().items():
            if not isinstance(value, str):
                require_positive(name, value)
        return ExactGuarantee(terms=self.terms)

    def counted(self) -> None:
        """Return None: the guarantee does not depend on the size of the head."""

    def offer(self, gradients: float) -> Quote:
        """Return the quote of a run that takes so many gradients."""
        return self.quoted(
            self.account(), gradients, surviving_information_bits=0.0, training=TrainingKind.EXACT
        )

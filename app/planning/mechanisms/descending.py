"""What the mechanisms have in common whose lineages are trained by descent on fixed batches."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from app.accounting.guarantees import Guarantee
from app.domain.plan import Plan
from app.planning.mechanisms.mechanism import Mechanism

AccountOf = Callable[[int], Guarantee | None]
"""What so many steps guarantee, with the release after the last; None while that is nothing."""


@dataclass(frozen=True, kw_only=True)
class Descending(Mechanism):
    """A mechanism whose runs go on with the descent of the training."""

    rule: ClassVar[str | None] = "descent"

    @abstractmethod
    def account_by_step(self, plan: Plan) -> AccountOf:
        """Return the accountant of a run's steps, made once for all; raises ``ParameterError``."""

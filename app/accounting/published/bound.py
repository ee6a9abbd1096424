"""The form of every bound from a paper.

A theorem is a frozen dataclass whose fields are all its parameters. ``account_of`` makes of it the
function that callers see.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from app.accounting.guarantees import Guarantee, RenyiGuarantee
from app.accounting.terms import Terms

G = TypeVar("G", bound=Guarantee)


class Bound(ABC, Generic[G]):
    """A theorem and all its parameters; ``TERMS`` are its guarantee's."""

    TERMS: ClassVar[Terms]

    @abstractmethod
    def guarantee(self) -> G:
        """Return what the theorem says of these parameters."""

    def proportional(self, factor: float) -> RenyiGuarantee:
        """Return the Renyi curve ``order * factor``."""
        return RenyiGuarantee(terms=self.TERMS, curve=lambda order: order * factor)


@dataclass(frozen=True, kw_only=True)
class ConvexBound(Bound[G]):
    """A theorem about convex losses with constants.

    Attributes:
        weight_decay: m or lambda, the strong convexity; 0 for merely convex losses.
        smoothness: L or beta, of the loss of one record, without weight decay.
        lipschitz: M, its largest slope.
        records: n.
    """

    weight_decay: float
    smoothness: float
    lipschitz: float
    records: int


def account_of(theorem: type[Bound[G]]) -> Callable[..., G]:
    """Return a function from a theorem's parameters, by name, to its guarantee."""

    def account(**parameters: object) -> G:
        return theorem(**parameters).guarantee()

    signature = inspect.signature(theorem)
    account.__signature__ = signature  # type: ignore[attr-defined]
    account.__annotations__ = {name: part.annotation for name, part in signature.parameters.items()}
    return account

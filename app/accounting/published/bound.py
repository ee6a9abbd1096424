"""The skeleton of every bound from a paper.

A theorem is a frozen dataclass, ``Parameters`` in a module of its own. Its fields are what the
module's ``account`` takes, the noise among them; ``calibrate`` takes the target and all the others.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar, cast

from app.accounting.guarantees import Guarantee, PointGuarantee, RenyiGuarantee
from app.accounting.search import meeting, smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_delta, require_positive

G = TypeVar("G", bound=Guarantee)


@dataclass(frozen=True)
class Bound(ABC, Generic[G]):
    """A theorem and all its parameters.

    Attributes:
        NOISE: the name of the field for which ``calibrate`` solves.
    """

    NOISE: ClassVar[str] = "noise_std"

    @abstractmethod
    def guarantee(self) -> G:
        """Return what the theorem says of these parameters."""

    @abstractmethod
    def smallest_noise(self, *, epsilon: float, delta: float) -> float:
        """Return the smallest noise that reaches (epsilon, delta), rounded up."""


class SearchedBound(Bound[G]):
    """A theorem whose noise has to be searched for.

    Attributes:
        WIDTH: how far above the smallest noise the answer may lie, relative to it.
    """

    WIDTH: ClassVar[float] = 1e-10

    @abstractmethod
    def first_guess(self, *, epsilon: float, delta: float) -> float:
        """Return a noise of about the right size, whatever the noise is now."""

    def smallest_noise(self, *, epsilon: float, delta: float) -> float:
        """Return the smallest noise that reaches (epsilon, delta), rounded up.

        Raises:
            CalibrationError: no noise of reasonable size reaches it.
        """
        return smallest_noise(
            meeting(
                lambda noise: replace(self, **{self.NOISE: noise}).guarantee(),
                epsilon=epsilon,
                delta=delta,
            ),
            scale=self.first_guess(epsilon=epsilon, delta=delta),
            relative_width=self.WIDTH,
        )


@dataclass(frozen=True, kw_only=True)
class SolvedBound(Bound[PointGuarantee]):
    """A theorem that is solved for epsilon at one delta, and for the noise.

    Attributes:
        TERMS: of its guarantee.
    """

    TERMS: ClassVar[Terms]

    delta: float
    noise_std: float

    @abstractmethod
    def epsilon(self) -> float:
        """Return the theorem's epsilon, rounded up."""

    @abstractmethod
    def noise(self, *, epsilon: float) -> float:
        """Return the noise that the theorem asks for, rounded up."""

    @abstractmethod
    def check_range(self, epsilon: float) -> None:
        """Raise ``ParameterError`` for an epsilon at which the theorem does not hold."""

    def guarantee(self) -> PointGuarantee:
        """Return the theorem's epsilon at ``delta``.

        Raises:
            ParameterError: epsilon is above the theorem's range.
        """
        epsilon = self.epsilon()
        self.check_range(epsilon)
        return PointGuarantee(terms=self.TERMS, at_epsilon=epsilon, at_delta=self.delta)

    def smallest_noise(self, *, epsilon: float, delta: float) -> float:  # noqa: ARG002
        """Return the theorem's noise for epsilon at ``self.delta``, rounded up.

        Raises:
            ParameterError: epsilon is above the theorem's range.
        """
        self.check_range(epsilon)
        return self.noise(epsilon=epsilon)


def proportional(terms: Terms, factor: float) -> RenyiGuarantee:
    """Return the Renyi curve ``order * factor``."""
    return RenyiGuarantee(terms=terms, curve=lambda order: order * factor)


def functions_of(theorem: type[Bound[G]]) -> tuple[Callable[..., G], Callable[..., float]]:
    """Return ``account`` and ``calibrate`` of a theorem, which take their arguments by name.

    ``account`` turns the theorem's parameters into its guarantee, ``calibrate`` turns a target
    (epsilon, delta) and the parameters other than the noise into that noise. Both raise
    ``ParameterError`` where a parameter is out of its range, and ``calibrate`` raises
    ``CalibrationError`` where no noise of reasonable size reaches the target.
    """
    fields = inspect.signature(theorem).parameters
    build = cast("Callable[..., Bound[G]]", theorem)

    def account(**parameters: object) -> G:
        return build(**parameters).guarantee()

    def calibrate(*, epsilon: float, delta: float, **setting: object) -> float:
        given = {"epsilon": require_positive("epsilon", epsilon), "delta": require_delta(delta)}
        named = {name: value for name, value in given.items() if name in fields}
        # The search replaces the noise; until then it is any number that is allowed.
        unfinished = build(**setting, **named, **{theorem.NOISE: 1.0})
        return unfinished.smallest_noise(**given)

    target = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=float)
        for name in ("epsilon", "delta")
    }
    others = {name: field for name, field in fields.items() if name != theorem.NOISE}
    _sign(account, theorem, fields.values())
    _sign(calibrate, theorem, (target | others).values())
    return account, calibrate


def _sign(
    function: Callable[..., object], theorem: type, parameters: Iterable[inspect.Parameter]
) -> None:
    """Give a function the module, the signature and the types that callers see."""
    keywords = [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parameters]
    function.__module__ = theorem.__module__
    function.__annotations__ = {part.name: part.annotation for part in keywords}
    function.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]

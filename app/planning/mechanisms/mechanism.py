"""What a mechanism is: a frozen class, whose instances hold all parameters of one plan.

Everything that the service asks of a mechanism is asked here: planning asks for quotes, workers for
the rule and what the steps that they took are worth, certificates for claims and what contradicts
them. ``docs/development.md`` says how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import ConfigDict, Field

from app.accounting.guarantees import ExactGuarantee, Guarantee
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.errors import ParameterError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.schedules import MAX_SCHEDULE_STEPS
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.planning.tracking import CurrentRelease

# Ranges of parameters in a certificate: counts are bounded, which bounds a verifier's work.
MAX_BATCHES: Final = 1_000_000

Positive = Annotated[float, Field(gt=0)]
Steps = Annotated[int, Field(ge=1, le=10_000_000)]
Whole = Annotated[int, Field(ge=1, le=2**53)]
Dimension = Annotated[int, Field(ge=1, le=2**40)]
# Its square is a normal float64 (``app.domain.checks.require_noise``).
NoiseStd = Annotated[float, Field(ge=1e-140, le=1e140)]
NoNoise = Annotated[float, Field(ge=0, le=0)]

_LENGTHS: Final = Field(min_length=1, max_length=MAX_SCHEDULE_STEPS)
Numbers = float | Annotated[Sequence[float], _LENGTHS]
NoiseStds = NoiseStd | Annotated[Sequence[NoiseStd], _LENGTHS]


class Needs(StrEnum):
    """What a mechanism needs of a model."""

    ANY_NETWORK = "any_network"
    LINEAR_HEAD = "linear_head"
    RIDGE_HEAD = "ridge_head"
    BOOSTED_TREES = "boosted_trees"
    ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class Draws:
    """So many Gaussian numbers of one standard deviation; for DP-SGD in units of its clip."""

    noise_std: float
    count: int


@dataclass(frozen=True)
class Claim:
    """What a certificate says beside the parameters.

    ``releases`` counts the versions of the lineage up to this one, ``forgotten`` the records that
    left since these weights' training; ``trained_again`` says whether some left before it, from
    weights that are gone.
    """

    epsilon: float
    version: int
    releases: int
    forgotten: int
    trained_again: bool


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A mechanism with all its parameters, which are the fields of its class.

    The types of the fields, with their ranges, are the form of the parameters in a certificate.

    Attributes:
        name: in policies, plans and certificates.
        version: of its accountant.
        needs: what a model must be.
        rule: the module of ``workers.mechanisms`` with its update rule, where the name is another.
        optional: fields that a certificate leaves out where they are None.
        carries_adaptive: whether requests may depend on earlier releases.
        fine_tunes: whether the rest of the budget goes into noise-free steps on retained records.
        in_frame: whether it works in the reference frame, and not on the weights themselves.
        trains_anew: whether it replaces the weights by those of a new training.
        counts_from_training: whether it accounts only for records that left since the training.
        covers_later: whether a release may cover requests that come after it, without a run.
        stepwise: whether a part of the steps is a plan of its own that is quick to account for.
        on_grid: whether the grid of its noise follows from the parameters.
        divides: whether the weights may be divided among several devices.
    """

    # How a certificate's parameters are read: nothing is converted, nothing is left over.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False
    )

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[Needs] = Needs.ANY_NETWORK
    rule: ClassVar[str | None] = None
    optional: ClassVar[frozenset[str]] = frozenset()
    carries_adaptive: ClassVar[bool] = False
    fine_tunes: ClassVar[bool] = False
    in_frame: ClassVar[bool] = False
    trains_anew: ClassVar[bool] = False
    counts_from_training: ClassVar[bool] = False
    covers_later: ClassVar[bool] = False
    stepwise: ClassVar[bool] = False
    on_grid: ClassVar[bool] = True
    divides: ClassVar[bool] = False

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the mechanism with parameters by name; the accountant checks their ranges."""
        known = {field.name: field for field in fields(cls)}
        for name in parameters:
            if name not in known:
                raise ParameterError(name, f"one of {', '.join(known)}")
        for name, field in known.items():
            value = parameters.get(name, field.default)
            if value is MISSING or (value is None and field.default is not None):
                raise ParameterError(name, "given")
        return cls(**parameters)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    @abstractmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Return an offer that meets the policy, or raise ``PlanError``, which says why."""

    @classmethod
    def quote_run(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Return what a run does under a policy that names this mechanism."""
        return cls.quote(policy, shape)

    @abstractmethod
    def account(self) -> Guarantee:
        """Return what the parameters guarantee; ``ParameterError`` if one is out of its range."""

    @classmethod
    def covering(cls, present: CurrentRelease, policy: Policy, records: Mapping[int, int]) -> Self:
        """Return what a certificate of the present release states with ``records`` added.

        ``records`` counts them by batch. Nothing happened after the release; whether its noise is
        enough is for ``account`` to say. Only of mechanisms that cover later requests.
        """
        raise NotImplementedError

    def quoted(self, guarantee: Guarantee, gradients: float, **more: Any) -> Quote:  # noqa: ANN401
        """Return the quote of a run that takes so many gradients; ``more`` are a quote's fields."""
        return Quote(
            mechanism=self.name,
            parameters=self.parameters(),
            guarantee=guarantee,
            certifying_gradients=gradients,
            **({"gradient_computations": gradients} | more),
        )

    def taken(self, plan: Plan, steps: int) -> Self:  # noqa: ARG002
        """Return the parameters of a run that took ``steps`` steps, whatever was planned."""
        return self

    @abstractmethod
    def counted(self) -> int | None:
        """Return how many trained numbers were counted; None in real arithmetic, or without any."""

    def draws(self, *, first: bool) -> list[Draws]:  # noqa: ARG002
        """Return which noise a run draws, in order; ``first`` is the run that trained."""
        return []

    def releases_before(self) -> int:
        """Return how many earlier releases the guarantee composes."""
        return 0

    @classmethod
    def worth_of_upload(cls, bits: float | None) -> str:
        """Say what survives of a lineage's first weights; ``bits`` is the plan's bound."""
        if cls.trains_anew:
            return f"nothing of it survives {cls.name}, which trains from nothing"
        if bits is None:
            return f"under {cls.name} each release tells of it what the policy's (ε, δ) allows"
        return (
            f"under {cls.name} each release, the first one too, tells at most {bits:.2g} bits of "
            "it: what a version scores, it has learned from the retained records afterwards"
        )

    def refuse_slow(self) -> None:  # noqa: B027 - most are quick
        """Raise ``PlanError`` where accounting would take minutes."""

    def goes_on_from(self, older: "Mechanism") -> bool:  # noqa: ARG002
        """Return whether all that ``older`` says of the same training happened here as well."""
        return True

    def contradiction(self, claim: Claim) -> str | None:  # noqa: ARG002
        """Return in which way a certificate's claim contradicts the parameters, or None."""
        return None


AccountOf = Callable[[int], Guarantee | None]
"""What so many steps guarantee, with the release after the last; None while that is nothing."""


@dataclass(frozen=True, kw_only=True)
class Descending(Mechanism):
    """A mechanism whose runs go on with the descent of the training, on fixed batches."""

    rule: ClassVar[str | None] = "descent"

    @abstractmethod
    def account_by_step(self, plan: Plan) -> AccountOf:
        """Return the accountant of a run's steps, made once for all; raises ``ParameterError``."""


def dimension_of(mechanism: Mechanism) -> int:
    """Return how many trained numbers a mechanism counted, or raise ``ParameterError``."""
    dimension = mechanism.counted()
    if dimension is None:
        raise ParameterError("dimension", "given")
    return dimension


@dataclass(frozen=True, kw_only=True)
class Deterministic(Mechanism):
    """A mechanism whose releases are computed anew, without a seed and without earlier weights.

    Attributes:
        terms: of the guarantee.
        libraries: on whose versions the weights depend beside those that every certificate names.
    """

    libraries: ClassVar[tuple[str, ...]] = ()
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

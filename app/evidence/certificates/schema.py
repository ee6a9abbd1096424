"""The statement's schema: the fields of each basis, with types and ranges.

Every field is known and none is missing; no value is converted. Their content is checked in
``consistency``, ``tensors`` and ``verification``: against each other, against the weights and
against what is computed again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from app.domain import strict_json
from app.domain.architectures import MOST_MEMBERS, BackboneDigest, BaseDigest, Member
from app.domain.errors import VerificationError
from app.domain.states import MOST_DEVICES, Basis, Parallelism
from app.evidence.certificates.weights_file import MAX_TENSORS

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:expunge:certificate:v1"
WEIGHTS_NAME: Final = "model.safetensors"
SCOPE: Final = (
    "The subject and everything derived from it without the forgotten records is covered. "
    "Versions released before the deletion are outside this statement."
)
SECURE_NOISE: Final = "aes-256-ctr, box-muller float64, 74-bit radius, sum of 2"
ON_DEVICE_NOISE: Final = "chacha20, box-muller float64, 74-bit radius, sum of 2"
"""Where a CUDA device computes its own key stream."""
NOISE_GENERATORS: Final = frozenset({SECURE_NOISE, ON_DEVICE_NOISE})
"""Workers implement them; a verifier knows them by name only."""
MAX_COUNT: Final = 2**53
_MAX_ASSUMPTIONS: Final = 64
_MOST_ARITHMETIC: Final = 500 * MOST_MEMBERS


def _moment(text: str) -> str:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None or moment.isoformat() != text:
        raise ValueError("not a time with its time zone")
    return text


Text = Annotated[str, Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(min_length=1, max_length=500)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Number = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Field(gt=0)]
Moment = Annotated[str, Field(max_length=64), AfterValidator(_moment)]


class Section(BaseModel):
    """An object without unknown fields. An optional field is omitted, never null."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_null_for_missing(cls, fields: Any) -> Any:  # noqa: ANN401
        if isinstance(fields, dict):
            for name, field in cls.model_fields.items():
                if name in fields and fields[name] is None and not field.is_required():
                    raise ValueError(f"{name} is null")
        return fields


class Model(Section):
    """The certified version."""

    name: Name
    version: Number


class Target(Section):
    """The policy's target."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class PublicSource(Section):
    """The public weights at a frame's centre."""

    name: Name
    sha256: Sha256


class Frame(Section):
    """The coordinates in which the update rule worked."""

    centre: Literal["initialisation_mean", "public_weights"]
    scale: Annotated[dict[Name, Positive], Field(min_length=1, max_length=MAX_TENSORS)]
    public_tensors: Annotated[list[Name], Field(min_length=1, max_length=MAX_TENSORS)] | None = None
    public_source: PublicSource | None = None


class NoiseSection(Section):
    """The random numbers that the run drew, and what its last noisy position was rounded to.

    ``grid`` is a power of two, in the coordinates of the noise; None if these depend on more than
    the parameters.
    """

    generator: Name
    grid: Positive | None
    drawn: Number


class Mechanism(Section):
    """The mechanism. ``parameters`` are checked by the mechanism's own schema.

    ``devices`` and ``parallelism`` are left out where one process computed the weights.
    """

    name: Name
    parameters: dict[str, Any]
    frame: Frame | None
    tensors: Annotated[list[Name], Field(min_length=1, max_length=MAX_TENSORS)]
    noise: NoiseSection | None
    devices: Annotated[int, Field(ge=2, le=MOST_DEVICES)] | None = None
    parallelism: Literal[Parallelism.FULL_SHARD] | None = None


class Backbone(Section):
    """The public weights that the model builds on, and the digest of what computes with them."""

    name: Name
    sha256: Sha256
    definition: Sha256
    frozen: bool

    def digest(self) -> BackboneDigest:
        """Return what the service's claims are computed from."""
        return BackboneDigest.from_json(self.model_dump())


class Base(Section):
    """The public tensors of the network that no run trains and the weight file does not hold."""

    sha256: Sha256
    tensors: Annotated[list[Name], Field(min_length=1, max_length=MAX_TENSORS)]

    def digest(self) -> BaseDigest:
        """Return what the service's claims are computed from."""
        return BaseDigest.from_json(self.model_dump())


class Tree(Section):
    """A tree of salted commitments (RFC 6962)."""

    size: Count
    root: Sha256


class Forgotten(Section):
    """All records forgotten for a lineage so far.

    Each request for a record adds one commitment to one of two trees, which only grow.

    Attributes:
        since_version: the version with which the lineage began, and its trees.
        requests: number of requests for at least one of ``records``.
        records: number of forgotten records that the weights may have learned from.
        before_training: how many of them were forgotten before the training of these weights began:
            0 unless the lineage was trained again.
        covered: the tree of commitments to ``records``.
        excluded_records: number of further forgotten records that never influenced the weights.
        excluded: the tree of commitments to them.
    """

    since_version: Number
    requests: Count
    records: Count
    before_training: Count
    covered: Tree
    excluded_records: Count
    excluded: Tree


class Excluded(Section):
    """Some of the records that never influenced the weights: all of one request, or of several.

    Attributes:
        records: how many there are.
        excluded: the lineage's tree of commitments to all such records, as in ``Forgotten``.
        first: the place in that tree of the first commitment that the certificate is about.
        leaves: how many follow one another from there.
    """

    since_version: Number
    requests: Number
    records: Number
    excluded: Tree
    first: Count
    leaves: Number


def _only_true(value: bool) -> bool:  # noqa: FBT001 - pydantic calls it so
    if not value:
        raise ValueError("left out where it is false")
    return value


class NoisePoint(Section):
    """The headline metric of the released weights with more noise, of this deviation in all."""

    noise_std: Annotated[float, Field(gt=0)]
    score: float


class FewerMembers(Section):
    """The headline metric of an ensemble with so many of its members."""

    members: Number
    score: float


class Evaluation(Section):
    """Figures outside the guarantee; ``headline`` names the metric that is shown first.

    ``baseline`` is what one answer for all of the same records has of it, and ``higher_is_better``
    which way it is better. ``not_measured`` says that a version only lacks some members of one that
    was measured.
    """

    outside_the_guarantee: bool
    held_out_records: Count
    held_out_loss: float | None = None
    metrics: dict[Name, float] = Field(default_factory=dict)
    headline: Name | None = None
    baseline: float | None = None
    higher_is_better: StrictBool | None = None
    noise_curve: list[NoisePoint] | None = None
    fewer_members: list[FewerMembers] | None = None
    not_measured: Annotated[StrictBool, AfterValidator(_only_true)] | None = None


class Times(Section):
    """When the run began and when its result was certified; the same without a run."""

    started_at: Moment
    certified_at: Moment


class Software(Section):
    """Software versions.

    ``arithmetic`` says with what the weights can be computed again, bit for bit; of members of an
    ensemble, which were trained in different places, each that there is.
    """

    expunge: Name
    torch: Name
    numpy: Name
    scipy: Name
    cryptography: Name
    arithmetic: Annotated[str, Field(min_length=1, max_length=_MOST_ARITHMETIC)] | None = None


class Common(Section):
    """What predicates of every basis have."""

    model: Model
    guarantee: dict[str, Any]
    backbone: Backbone | None = None
    base: Base | None = None
    times: Times
    scope: Literal[SCOPE]  # type: ignore[valid-type]
    software: Software


class AsTrained(Common):
    """The predicate of a version released as it was trained, without noise."""

    basis: Literal[Basis.RELEASED_AS_TRAINED]
    evaluation: Evaluation
    previous_certificate: Sha256 | None


class Exclusion(Common):
    """The predicate about records that never influenced the weights."""

    basis: Literal[Basis.EXCLUDED_FROM_TRAINING]
    assumptions: Annotated[list[dict[str, Any]], Field(max_length=_MAX_ASSUMPTIONS)]
    trained_anew: Annotated[StrictBool, AfterValidator(_only_true)] | None = None
    forgotten: Excluded
    previous_certificate: Sha256


class MemberSection(Section):
    """A member of an ensemble: the digest of its tensors, and the version that trained it.

    Of one that is out, only the first version without it.
    """

    sha256: Sha256 | None = None
    trained_in: Number | None = None
    out_since: Number | None = None

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        given = {name for name, value in self if value is not None}
        if given not in ({"sha256", "trained_in"}, {"out_since"}):
            raise ValueError("neither an active member nor one that is out")
        return self

    def member(self) -> Member:
        """Return what the service knows of it."""
        return Member(self.sha256, self.trained_in, self.out_since)


class Release(Common):
    """The predicate of a version that a mechanism produced.

    ``recomputable`` says that anyone who holds the remaining records, and the seed where there is
    one, can compute the weights again, bit for bit, with what ``software.arithmetic`` names.
    """

    basis: Literal[Basis.CERTIFIED_RELEASE, Basis.UNLEARNED]
    target: Target
    mechanism: Mechanism
    members: Annotated[list[MemberSection], Field(min_length=1, max_length=MOST_MEMBERS)] | None = (
        None
    )
    accountant: dict[str, Any]
    assumptions: Annotated[list[dict[str, Any]], Field(max_length=_MAX_ASSUMPTIONS)]
    forgotten: Forgotten
    recomputable: Annotated[StrictBool, AfterValidator(_only_true)] | None = None
    evaluation: Evaluation
    previous_certificate: Sha256 | None


Predicate = AsTrained | Exclusion | Release


class Digest(Section):
    """The weight file's digest."""

    sha256: Sha256


class Subject(Section):
    """The weight file."""

    name: Literal[WEIGHTS_NAME]  # type: ignore[valid-type]
    digest: Digest


class Statement(Section):
    """An in-toto Statement v1 of this predicate type, with one subject."""

    type_: Literal[STATEMENT_TYPE] = Field(alias="_type")  # type: ignore[valid-type]
    subject: Annotated[list[Subject], Field(min_length=1, max_length=1)]
    predicate_type: Literal[PREDICATE_TYPE] = Field(alias="predicateType")  # type: ignore[valid-type]
    predicate: Annotated[Predicate, Field(discriminator="basis")]


def read_statement(payload: bytes) -> tuple[Statement, dict[str, Any]]:
    """Parse a payload, or raise ``VerificationError``; also return its predicate as plain JSON."""
    try:
        document = strict_json.loads(payload)
        return Statement.model_validate(document), document["predicate"]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise VerificationError("statement", f"{path_of(first['loc'])}: {first['msg']}") from error
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise VerificationError("statement", "not a certificate") from error


def path_of(location: Sequence[int | str]) -> str:
    """Return the path of an error in a document, without pydantic's internal names."""
    return ".".join(str(part) for part in location) or "the document"

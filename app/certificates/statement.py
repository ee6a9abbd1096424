"""A certificate's statement: an in-toto Statement v1 about one weight file.

Field meanings never change once released; fields are only added. See ``schema`` for the fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from typing import Any, Final

from app.accounting.terms import Neighbours
from app.certificates.claims import EXCLUDED, NO_GUARANTEE, claims_of, exclusion_assumptions
from app.certificates.noise import Noise, draws_of
from app.certificates.schema import PREDICATE_TYPE, SCOPE, STATEMENT_TYPE, WEIGHTS_NAME
from app.domain.architectures.backbone import BackboneDigest
from app.domain.architectures.base import BaseDigest
from app.domain.architectures.ensemble import Member
from app.domain.parallelism import Parallelism
from app.domain.plan import Plan
from app.domain.schedules import to_json
from app.domain.states import Basis
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.mechanism import Mechanism

_SOFTWARE: Final = ("expunge", "torch", "numpy", "scipy", "cryptography")


@dataclass(frozen=True)
class Subject:
    """The certified version."""

    model: str
    version: int
    weights_sha256: str


@dataclass(frozen=True)
class TreeHead:
    """A tree of salted commitments: how many there are, and the RFC 6962 root in hex."""

    size: int
    root: str


@dataclass(frozen=True)
class Coverage:
    """All records forgotten for a lineage so far.

    Each request for a record adds one commitment to one of two trees, which only grow.

    Attributes:
        since_version: the version with which the lineage began, and its trees.
        requests: number of requests for at least one of ``records``.
        records: number of forgotten records that the weights may have learned from.
        covered: the tree of commitments to ``records``.
        excluded_records: number of further forgotten records that never influenced the weights.
        excluded: the tree of commitments to them.
        before_training: number of ``records`` that were forgotten before the training of these
            weights began: 0 unless the lineage was trained again.
    """

    since_version: int
    requests: int
    records: int
    covered: TreeHead
    excluded_records: int
    excluded: TreeHead
    before_training: int = 0


@dataclass(frozen=True)
class Exclusion:
    """Some of the records that never influenced the weights: all of one request, or of several.

    Attributes:
        records: how many there are.
        excluded: the lineage's tree of commitments to all such records, as in ``Coverage``.
        first: the place in that tree of the first commitment that the certificate is about.
        leaves: how many follow one another from there.
    """

    since_version: int
    requests: int
    records: int
    excluded: TreeHead
    first: int
    leaves: int


@dataclass(frozen=True)
class CertifyingPhase:
    """What a run did to reach its target, as counted at run time.

    Attributes:
        parameters: the accountant's keyword arguments, with the steps actually taken.
        frame: the reference frame's description; None if the rule works on the weights.
        tensors: names of the trained tensors, as in the weight file.
        devices: how many computed the weights; 1 for a member of an ensemble.
        parallelism: how they divided the work.
        arithmetic: the kernels that computed a head that is a function of its records.
    """

    plan: Plan
    parameters: Mapping[str, Any]
    frame: Mapping[str, Any] | None
    tensors: tuple[str, ...]
    noise: Noise | None
    steps: int = 0
    devices: int = 1
    parallelism: Parallelism = Parallelism.NONE
    arithmetic: str | None = None


@dataclass(frozen=True)
class Times:
    """When the run began and when its result was certified, in UTC; the same without a run."""

    started_at: datetime
    certified_at: datetime


def unlearning_statement(
    *,
    basis: Basis,
    subject: Subject,
    coverage: Coverage,
    phase: CertifyingPhase,
    evaluation: Mapping[str, Any],
    previous_certificate: str | None,
    times: Times,
    backbone: BackboneDigest | None = None,
    base: BaseDigest | None = None,
    members: Sequence[Member] = (),
) -> dict[str, Any]:
    """Return the statement of a version that a mechanism produced.

    ``members`` are those of an ensemble.
    """
    plan = phase.plan
    mechanism = mechanism_named(plan.mechanism)
    claims = claims_of(
        mechanism.of(phase.parameters),
        epsilon=plan.epsilon,
        delta=plan.delta,
        backbone=backbone,
        base=base,
    )
    return _statement(
        subject,
        {
            "basis": basis,
            "target": {"epsilon": plan.epsilon, "delta": plan.delta},
            **claims,
            "mechanism": {
                "name": plan.mechanism,
                "parameters": to_json(phase.parameters),
                "frame": None if phase.frame is None else dict(phase.frame),
                "tensors": sorted(phase.tensors),
                "noise": None if phase.noise is None else asdict(phase.noise),
                **(
                    {"devices": phase.devices, "parallelism": phase.parallelism}
                    if phase.devices > 1
                    else {}
                ),
            },
            **({"members": [member.to_json() for member in members]} if members else {}),
            **_public_fields(backbone, base),
            "forgotten": _forgotten(
                coverage,
                mechanism=plan.mechanism,
                relation=claims["guarantee"]["neighbouring_relation"],
            ),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
            "previous_certificate": previous_certificate,
            "times": _times(times),
        },
        arithmetic=phase.arithmetic,
    )


def restated(
    statement: Mapping[str, Any],
    *,
    coverage: Coverage,
    previous_certificate: str | None,
    times: Times,
) -> dict[str, Any]:
    """Return a version's statement for more requests whose records were already forgotten."""
    predicate = statement["predicate"]
    changes = {
        "basis": _basis_again(predicate, coverage),
        "forgotten": _forgotten(
            coverage,
            mechanism=predicate["mechanism"]["name"],
            relation=predicate["guarantee"]["neighbouring_relation"],
        ),
        "previous_certificate": previous_certificate,
        "times": _times(times),
    }
    return {**statement, "predicate": {**predicate, **changes}}


def covering_statement(
    statement: Mapping[str, Any],
    *,
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    coverage: Coverage,
    previous_certificate: str | None,
    times: Times,
) -> dict[str, Any]:
    """Return a version's statement for more forgotten records, which its weights had read.

    The weights, their backbone, noise and evaluation are the version's; what the noise is worth for
    all of the records follows from ``mechanism``.
    """
    predicate = statement["predicate"]
    parameters = to_json(mechanism.parameters())
    basis = _basis_again(predicate, coverage)
    drew = draws_of(mechanism.name, parameters, basis=basis)
    stated = {
        **predicate,
        "target": {"epsilon": epsilon, "delta": delta},
        **claims_of(
            mechanism,
            epsilon=epsilon,
            delta=delta,
            backbone=backbone_of(statement),
            base=base_of(statement),
        ),
        "mechanism": {
            **predicate["mechanism"],
            "name": mechanism.name,
            "parameters": parameters,
            "noise": predicate["mechanism"]["noise"] if drew else None,
        },
    }
    return restated(
        {**statement, "predicate": stated},
        coverage=coverage,
        previous_certificate=previous_certificate,
        times=times,
    )


def backbone_of(statement: Mapping[str, Any]) -> BackboneDigest | None:
    """Return the backbone that a version stands on, whatever has become of it since."""
    own = statement["predicate"].get("backbone")
    return None if own is None else BackboneDigest.from_json(own)


def base_of(statement: Mapping[str, Any]) -> BaseDigest | None:
    """Return the public tensors of a version's network that its file does not hold."""
    own = statement["predicate"].get("base")
    return None if own is None else BaseDigest.from_json(own)


def as_trained_statement(
    *,
    subject: Subject,
    evaluation: Mapping[str, Any],
    previous_certificate: str | None,
    times: Times,
    backbone: BackboneDigest | None = None,
    base: BaseDigest | None = None,
) -> dict[str, Any]:
    """Return the statement of a training's release without noise."""
    return _statement(
        subject,
        {
            "basis": Basis.RELEASED_AS_TRAINED,
            "guarantee": dict(NO_GUARANTEE),
            **_public_fields(backbone, base),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
            "previous_certificate": previous_certificate,
            "times": _times(times),
        },
    )


def exclusion_statement(
    *,
    subject: Subject,
    exclusion: Exclusion,
    previous_certificate: str | None,
    times: Times,
    backbone: BackboneDigest | None = None,
    base: BaseDigest | None = None,
    trained_anew: bool = False,
) -> dict[str, Any]:
    """Return the statement that a request's records never influenced the weights.

    ``trained_anew`` says that a training which began without them is the reason.
    """
    return _statement(
        subject,
        {
            "basis": Basis.EXCLUDED_FROM_TRAINING,
            "guarantee": dict(EXCLUDED),
            "assumptions": exclusion_assumptions(backbone, base, trained_anew=trained_anew),
            **_public_fields(backbone, base),
            **({"trained_anew": True} if trained_anew else {}),
            "forgotten": asdict(exclusion),
            "previous_certificate": previous_certificate,
            "times": _times(times),
        },
    )


def _basis_again(predicate: Mapping[str, Any], coverage: Coverage) -> Basis:
    """Return the basis of a version's statement for more requests.

    A later version's weights, trained or uploaded anew, may have learned from records that are
    named only now.
    """
    anew = predicate["model"]["version"] > 1 and coverage.records > 0
    return Basis.UNLEARNED if anew else Basis(predicate["basis"])


def _statement(
    subject: Subject, predicate: dict[str, Any], *, arithmetic: str | None = None
) -> dict[str, Any]:
    software = {name: _installed(name) for name in _SOFTWARE}
    if arithmetic is not None:
        software["arithmetic"] = arithmetic
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": WEIGHTS_NAME, "digest": {"sha256": subject.weights_sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "model": {"name": subject.model, "version": subject.version},
            **predicate,
            "scope": SCOPE,
            "software": software,
        },
    }


def _installed(library: str) -> str:
    """Return a library's version; the API may run without PyTorch."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def _forgotten(coverage: Coverage, *, mechanism: str, relation: str) -> dict[str, Any]:
    before = before_training(
        coverage.before_training, coverage.records, mechanism=mechanism, relation=relation
    )
    return asdict(coverage) | {"before_training": before}


def before_training(counted: int, records: int, *, mechanism: str, relation: str) -> int:
    """Return how many records a statement says left before the training, as its guarantee needs it.

    Retraining starts after all requests. A guarantee for any start does not depend on it.

    Args:
        counted: how many of ``records`` left before it.
        records: covered ones.
        mechanism: its name.
        relation: the guarantee's neighbouring relation.
    """
    if mechanism_named(mechanism).trains_anew:
        return records
    return 0 if relation == Neighbours.ANY_START else counted


def _public_fields(backbone: BackboneDigest | None, base: BaseDigest | None) -> dict[str, Any]:
    fields: dict[str, Any] = {} if backbone is None else {"backbone": backbone.to_json()}
    return fields if base is None else {**fields, "base": base.to_json()}


def _times(times: Times) -> dict[str, str]:
    return {name: moment.isoformat() for name, moment in asdict(times).items()}

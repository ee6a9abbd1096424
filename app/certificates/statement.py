"""A certificate's statement: an in-toto Statement v1 about one weight file.

Field meanings never change once released; fields are only added. See ``schema`` for the fields.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from typing import Any, Final

from app.accounting.terms import Neighbours
from app.certificates.claims import EXCLUDED, NO_GUARANTEE, claims_of, exclusion_assumptions
from app.certificates.noise import Noise
from app.certificates.schema import PREDICATE_TYPE, SCOPE, STATEMENT_TYPE, WEIGHTS_NAME
from app.domain.backbone import BackboneDigest
from app.domain.plan import Plan
from app.domain.schedules import to_json
from app.domain.states import Basis
from app.planning.mechanisms.catalogue import mechanism_named

_SOFTWARE: Final = ("expunge", "torch", "numpy", "scipy", "cryptography")


@dataclass(frozen=True)
class Subject:
    """The certified version."""

    model: str
    version: int
    weights_sha256: str


@dataclass(frozen=True)
class Coverage:
    """All records forgotten for a model so far.

    Attributes:
        requests, records: their numbers.
        commitments_root: RFC 6962 root over the sorted salted commitments, in hex.
        excluded_records: number of further forgotten records that never influenced the weights.
        excluded_root: the same root over their commitments.
        before_training: number of ``records`` that were forgotten before the training of these
            weights began: 0 unless the lineage was trained again.
    """

    requests: int
    records: int
    commitments_root: str
    excluded_records: int
    excluded_root: str
    before_training: int = 0


@dataclass(frozen=True)
class CertifyingPhase:
    """What a run did to reach its target, as counted at run time.

    Attributes:
        plan: the plan.
        parameters: the accountant's keyword arguments, with the steps actually taken.
        frame: the reference frame's description; None if the rule works on the weights.
        tensors: names of the trained tensors, as in the weight file.
        noise: the random numbers that the run drew; None if this release needed none.
        steps: the number of steps taken.
    """

    plan: Plan
    parameters: Mapping[str, Any]
    frame: Mapping[str, Any] | None
    tensors: tuple[str, ...]
    noise: Noise | None
    steps: int = 0


@dataclass(frozen=True)
class Times:
    """When the run began and when its result was certified, in UTC."""

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
) -> dict[str, Any]:
    """Return the statement of a version that a mechanism produced.

    Raises:
        ParameterError: a parameter is missing, unknown or out of its range.
        TargetNotMetError: the resulting guarantee is weaker than the plan's target.
    """
    plan = phase.plan
    mechanism = mechanism_named(plan.mechanism)
    claims = claims_of(
        mechanism.of(phase.parameters),
        epsilon=plan.epsilon,
        delta=plan.delta,
        backbone=backbone,
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
            },
            **_backbone_field(backbone),
            "forgotten": _forgotten(
                coverage,
                mechanism=plan.mechanism,
                relation=claims["guarantee"]["neighbouring_relation"],
            ),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
            "previous_certificate": previous_certificate,
            "times": _times(times),
        },
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
    # Weights that were brought a second time may have learned from records that are named only now.
    anew = predicate["model"]["version"] > 1 and coverage.records > 0
    changes = {
        "basis": Basis.UNLEARNED if anew else predicate["basis"],
        "forgotten": _forgotten(
            coverage,
            mechanism=predicate["mechanism"]["name"],
            relation=predicate["guarantee"]["neighbouring_relation"],
        ),
        "previous_certificate": previous_certificate,
        "times": _times(times),
    }
    return {**statement, "predicate": {**predicate, **changes}}


def as_trained_statement(
    *,
    subject: Subject,
    evaluation: Mapping[str, Any],
    times: Times,
    backbone: BackboneDigest | None = None,
) -> dict[str, Any]:
    """Return the statement of a first release without noise."""
    return _statement(
        subject,
        {
            "basis": Basis.RELEASED_AS_TRAINED,
            "guarantee": dict(NO_GUARANTEE),
            **_backbone_field(backbone),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
            "previous_certificate": None,
            "times": _times(times),
        },
    )


def exclusion_statement(
    *,
    subject: Subject,
    coverage: Coverage,
    previous_certificate: str | None,
    times: Times,
    backbone: BackboneDigest | None = None,
) -> dict[str, Any]:
    """Return the statement that a request's records never influenced the weights."""
    return _statement(
        subject,
        {
            "basis": Basis.EXCLUDED_FROM_TRAINING,
            "guarantee": dict(EXCLUDED),
            "assumptions": exclusion_assumptions(backbone),
            **_backbone_field(backbone),
            "forgotten": asdict(coverage),
            "previous_certificate": previous_certificate,
            "times": _times(times),
        },
    )


def _statement(subject: Subject, predicate: dict[str, Any]) -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": WEIGHTS_NAME, "digest": {"sha256": subject.weights_sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "model": {"name": subject.model, "version": subject.version},
            **predicate,
            "scope": SCOPE,
            "software": {name: metadata.version(name) for name in _SOFTWARE},
        },
    }


def _forgotten(coverage: Coverage, *, mechanism: str, relation: str) -> dict[str, Any]:
    """Return the coverage, with ``before_training`` as the mechanism's guarantee needs it.

    Retraining starts after all requests. A guarantee for any start does not depend on it.
    """
    before = coverage.before_training
    if mechanism_named(mechanism).trains_anew:
        before = coverage.records
    elif relation == Neighbours.ANY_START:
        before = 0
    return asdict(coverage) | {"before_training": before}


def _backbone_field(backbone: BackboneDigest | None) -> dict[str, Any]:
    return {} if backbone is None else {"backbone": asdict(backbone)}


def _times(times: Times) -> dict[str, str]:
    return {name: moment.isoformat() for name, moment in asdict(times).items()}

"""What a certificate says: an in-toto Statement v1 about one weight file.

Field meanings never change once released; fields are only added.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from typing import Any

from app.accounting import catalogue
from app.accounting.guarantees import GaussianGuarantee
from app.accounting.terms import asserted
from app.domain.backbone import BackboneDigest
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from app.domain.states import Basis

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:expunge:certificate:v1"
WEIGHTS_NAME = "model.safetensors"

SCOPE = (
    "The subject and everything derived from it without the forgotten records is covered. "
    "Versions released before the deletion are outside this statement."
)
_SOFTWARE = ("expunge", "torch", "numpy", "scipy", "cryptography")


@dataclass(frozen=True)
class Subject:
    """The version that a certificate speaks about."""

    model: str
    version: int
    weights_sha256: str


@dataclass(frozen=True)
class Coverage:
    """All records forgotten so far for a model.

    Attributes:
        requests, records: how many.
        commitments_root: RFC 6962 root over the sorted salted commitments, in hex.
        excluded_records: how many further forgotten records never touched the weights.
        excluded_root: the same root over their commitments.
    """

    requests: int
    records: int
    commitments_root: str
    excluded_records: int
    excluded_root: str


@dataclass(frozen=True)
class CertifyingPhase:
    """What a run did to reach its target, as counted while it happened.

    Attributes:
        plan: the plan it followed.
        parameters: keyword arguments of the accountant, with the steps actually taken.
        frame: the reference frame's description; None where the rule works on the weights.
        noise_generator: the generator's name; None where there was no noise.
        steps: how many steps were taken.
    """

    plan: Plan
    parameters: Mapping[str, Any]
    frame: Mapping[str, Any] | None
    noise_generator: str | None
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
    """Return the statement for a version that a mechanism produced."""
    accountant = catalogue.accountant(phase.plan.mechanism)
    guarantee = catalogue.account(phase.plan.mechanism, phase.parameters)
    if not guarantee.meets(epsilon=phase.plan.epsilon, delta=phase.plan.delta):
        raise TargetNotMetError("the steps taken do not meet the target")
    described: dict[str, Any] = {
        "epsilon": min(phase.plan.epsilon, guarantee.epsilon(delta=phase.plan.delta)),
        "delta": phase.plan.delta,
        "neighbouring_relation": guarantee.terms.neighbours,
        "adaptive": guarantee.terms.adaptive,
        "direction": guarantee.terms.direction,
        "reference": guarantee.terms.reference,
        "releases_before": phase.parameters.get("earlier_releases") or 0,
        "attacker_advantage": guarantee.advantage(),
        "kind": guarantee.kind,
    }
    if isinstance(guarantee, GaussianGuarantee):
        described |= {
            "mu": guarantee.mu,
            "surviving_information_bits": guarantee.surviving_information_bits(),
        }
    return _statement(
        subject,
        {
            "basis": basis,
            "target": {"epsilon": phase.plan.epsilon, "delta": phase.plan.delta},
            "guarantee": described,
            "mechanism": {
                "name": phase.plan.mechanism,
                "parameters": dict(phase.parameters),
                "settings": dict(phase.plan.settings),
                "frame": None if phase.frame is None else dict(phase.frame),
                "ledger": phase.plan.ledger,
                "noise_generator": phase.noise_generator,
            },
            "accountant": {
                "name": accountant.NAME,
                "version": accountant.VERSION,
                "source": guarantee.terms.source,
            },
            "assumptions": [
                *(asdict(assumption) for assumption in guarantee.terms.assumptions),
                *_backbone_assumptions(backbone),
            ],
            **_backbone_field(backbone),
            "forgotten": asdict(coverage),
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
    """Return a version's statement for more requests, whose records were forgotten already."""
    changes = {
        "forgotten": asdict(coverage),
        "previous_certificate": previous_certificate,
        "times": _times(times),
    }
    return {**statement, "predicate": {**statement["predicate"], **changes}}


def as_trained_statement(
    *,
    subject: Subject,
    evaluation: Mapping[str, Any],
    times: Times,
    backbone: BackboneDigest | None = None,
) -> dict[str, Any]:
    """Return the statement for a first release that was published as it was trained."""
    return _statement(
        subject,
        {
            "basis": Basis.RELEASED_AS_TRAINED,
            "guarantee": {
                "kind": "none",
                "meaning": "No record is protected by this version: nothing was unlearned yet.",
            },
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
    """Return the statement that a request's records never touched the weights."""
    return _statement(
        subject,
        {
            "basis": Basis.EXCLUDED_FROM_TRAINING,
            "guarantee": {"kind": "exact", "epsilon": 0.0, "delta": 0.0},
            "assumptions": [
                {
                    "statement": "the records were held out: no gradient ever read them",
                    "support": "enforced",
                },
                *_backbone_assumptions(backbone),
            ],
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


def _backbone_assumptions(backbone: BackboneDigest | None) -> list[dict[str, Any]]:
    if backbone is None:
        return []
    name = f"the backbone {backbone.name} (sha256 {backbone.sha256})"
    statements = [f"the weights of {name} do not depend on the training data"]
    if backbone.frozen:
        statements.append(f"{name} makes each record's features from that record alone")
    return [asdict(assumption) for assumption in asserted(*statements)]


def _backbone_field(backbone: BackboneDigest | None) -> dict[str, Any]:
    return {} if backbone is None else {"backbone": asdict(backbone)}


def _times(times: Times) -> dict[str, str]:
    return {name: moment.isoformat() for name, moment in asdict(times).items()}

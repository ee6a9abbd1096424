"""A certificate's statement: an in-toto Statement v1 about one weight file.

Field meanings never change once released; fields are only added. See ``schema`` for the fields.
Its claims are computed from the parameters, here by the service and again by verifiers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from importlib import metadata
from typing import Any, Final

from app.accounting.guarantees import GaussianGuarantee, Guarantee, PointGuarantee
from app.accounting.terms import Neighbours, asserted, enforced
from app.domain.architectures import BackboneDigest, BaseDigest, Member
from app.domain.errors import TargetNotMetError
from app.domain.plan import Plan
from app.domain.schedules import to_json
from app.domain.states import Basis, Parallelism
from app.evidence.certificates import schema
from app.evidence.certificates.parameters import draws_of
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.mechanism import Mechanism

_SOFTWARE: Final = ("expunge", "torch", "numpy", "scipy", "cryptography")


@dataclass(frozen=True)
class CertifyingPhase:
    """What a run did to reach its target, as counted at run time.

    Attributes:
        parameters: the accountant's keyword arguments, with the steps actually taken.
        frame: the reference frame's description; None if the rule works on the weights.
        tensors: names of the trained tensors, as in the weight file.
        devices: how many computed the weights; 1 for a member of an ensemble.
        parallelism: how they divided the work.
        arithmetic: what must be equal to compute the weights again, bit for bit, where anyone who
            holds the remaining records can; none elsewhere.
    """

    plan: Plan
    parameters: Mapping[str, Any]
    frame: Mapping[str, Any] | None
    tensors: tuple[str, ...]
    noise: schema.NoiseSection | None
    steps: int = 0
    devices: int = 1
    parallelism: Parallelism = Parallelism.NONE
    arithmetic: str | None = None


@dataclass(frozen=True)
class Times:
    """When the run began and when its result was certified, in UTC; the same without a run."""

    started_at: datetime
    certified_at: datetime


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The certified version.

    Attributes:
        model, version: which.
        weights_sha256: of its file.
        times: of its run.
        previous_certificate: the digest of the model's certificate before this one, if any.
        backbone, base: the public weights that it stands on, if any.
    """

    model: str
    version: int
    weights_sha256: str
    times: Times
    previous_certificate: str | None
    backbone: BackboneDigest | None = None
    base: BaseDigest | None = None


def unlearning_statement(
    *,
    basis: Basis,
    subject: Subject,
    coverage: schema.Forgotten,
    phase: CertifyingPhase,
    evaluation: Mapping[str, Any],
    members: Sequence[Member] = (),
) -> dict[str, Any]:
    """Return the statement of a version that a mechanism produced."""
    plan = phase.plan
    mechanism = mechanism_named(plan.mechanism)
    claims = claims_of(
        mechanism.of(phase.parameters),
        epsilon=plan.epsilon,
        delta=plan.delta,
        backbone=subject.backbone,
        base=subject.base,
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
                "noise": None if phase.noise is None else phase.noise.model_dump(),
                **(
                    {"devices": phase.devices, "parallelism": phase.parallelism}
                    if phase.devices > 1
                    else {}
                ),
            },
            **({"members": [member.to_json() for member in members]} if members else {}),
            "forgotten": _forgotten(
                coverage,
                mechanism=plan.mechanism,
                relation=claims["guarantee"]["neighbouring_relation"],
            ),
            **({} if phase.arithmetic is None else {"recomputable": True}),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
        },
        arithmetic=phase.arithmetic,
    )


def restated(
    statement: Mapping[str, Any],
    *,
    coverage: schema.Forgotten,
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
    coverage: schema.Forgotten,
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


def as_trained_statement(*, subject: Subject, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of a training's release without noise."""
    return _statement(
        subject,
        {
            "basis": Basis.RELEASED_AS_TRAINED,
            "guarantee": dict(NO_GUARANTEE),
            "evaluation": {"outside_the_guarantee": True, **evaluation},
        },
    )


def exclusion_statement(
    *, subject: Subject, exclusion: schema.Excluded, trained_anew: bool = False
) -> dict[str, Any]:
    """Return the statement that a request's records never influenced the weights.

    ``trained_anew`` says that a training which began without them is the reason.
    """
    return _statement(
        subject,
        {
            "basis": Basis.EXCLUDED_FROM_TRAINING,
            "guarantee": dict(EXCLUDED),
            "assumptions": exclusion_assumptions(
                subject.backbone, subject.base, trained_anew=trained_anew
            ),
            **({"trained_anew": True} if trained_anew else {}),
            "forgotten": exclusion.model_dump(),
        },
    )


def _basis_again(predicate: Mapping[str, Any], coverage: schema.Forgotten) -> Basis:
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
        "_type": schema.STATEMENT_TYPE,
        "subject": [{"name": schema.WEIGHTS_NAME, "digest": {"sha256": subject.weights_sha256}}],
        "predicateType": schema.PREDICATE_TYPE,
        "predicate": {
            "model": {"name": subject.model, "version": subject.version},
            **predicate,
            **({} if subject.backbone is None else {"backbone": subject.backbone.to_json()}),
            **({} if subject.base is None else {"base": subject.base.to_json()}),
            "previous_certificate": subject.previous_certificate,
            "times": _times(subject.times),
            "scope": schema.SCOPE,
            "software": software,
        },
    }


@cache
def _installed(library: str) -> str:
    """Return a library's version; the API may run without PyTorch."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def _forgotten(coverage: schema.Forgotten, *, mechanism: str, relation: str) -> dict[str, Any]:
    before = before_training(
        coverage.before_training, coverage.records, mechanism=mechanism, relation=relation
    )
    return coverage.model_dump() | {"before_training": before}


def before_training(counted: int, records: int, *, mechanism: str, relation: str) -> int:
    """Return how many records left before the training, as the guarantee counts them."""
    if mechanism_named(mechanism).trains_anew:
        return records
    return 0 if relation == Neighbours.ANY_START else counted


def _times(times: Times) -> dict[str, str]:
    return {name: moment.isoformat() for name, moment in asdict(times).items()}


NO_GUARANTEE: Final[Mapping[str, Any]] = {
    "kind": "none",
    "meaning": "No record is protected by this version: nothing was unlearned yet.",
}
EXCLUDED: Final[Mapping[str, Any]] = {"kind": "exact", "epsilon": 0.0, "delta": 0.0}


def claims_of(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float,
    backbone: BackboneDigest | None,
    base: BaseDigest | None = None,
) -> dict[str, Any]:
    """Return ``guarantee``, ``accountant`` and ``assumptions``, or raise ``TargetNotMetError``."""
    guarantee = mechanism.account()
    if not guarantee.meets(epsilon=epsilon, delta=delta):
        raise TargetNotMetError("the target is not met")
    return {
        "guarantee": _described(
            guarantee,
            epsilon=epsilon,
            delta=delta,
            releases_before=mechanism.releases_before(),
        ),
        "accountant": {
            "name": mechanism.name,
            "version": mechanism.version,
            "source": guarantee.terms.source,
        },
        "assumptions": [
            *(_plain(assumption) for assumption in guarantee.terms.assumptions),
            *_about(backbone, base),
        ],
    }


def exclusion_assumptions(
    backbone: BackboneDigest | None, base: BaseDigest | None = None, *, trained_anew: bool
) -> list[dict[str, str]]:
    """Return the assumptions behind the statement that records never influenced the weights."""
    unread = enforced("the records were held out: no gradient ever read them")
    if trained_anew:  # earlier weights may have read them, and others' requests depend on those
        unread = (
            *enforced(
                "the training of these weights began anew without the records, which were "
                "forgotten before, held out, or not there yet: none of its gradients read them"
            ),
            *asserted("no request was chosen by looking at earlier releases of this model"),
        )
    return [*(_plain(assumption) for assumption in unread), *_about(backbone, base)]


def _described(
    guarantee: Guarantee, *, epsilon: float, delta: float, releases_before: int
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "epsilon": float(min(epsilon, guarantee.epsilon(delta=delta))),
        "delta": float(delta),
        "neighbouring_relation": guarantee.terms.neighbours.value,
        "adaptive": guarantee.terms.adaptive,
        "direction": guarantee.terms.direction.value,
        "reference": guarantee.terms.reference,
        "releases_before": releases_before,
        "attacker_advantage": float(guarantee.advantage()),
        "kind": guarantee.kind,
    }
    if isinstance(guarantee, GaussianGuarantee):
        described |= {
            "mu": float(guarantee.mu),
            "slack": float(guarantee.slack),
            "surviving_information_bits": float(guarantee.surviving_information_bits()),
        }
    if isinstance(guarantee, PointGuarantee):
        described["at_delta"] = float(guarantee.at_delta)
    return described


def _about(backbone: BackboneDigest | None, base: BaseDigest | None) -> list[dict[str, str]]:
    statements = [] if backbone is None else _about_backbone(backbone)
    if base is not None:
        statements.append(
            f"the {len(base.tensors)} tensors of the network's base (sha256 {base.sha256}), which "
            "no run trains, do not depend on the training data"
        )
    return [_plain(assumption) for assumption in asserted(*statements)]


def _about_backbone(backbone: BackboneDigest) -> list[str]:
    digests = f"sha256 {backbone.sha256}, definition {backbone.definition}"
    name = f"the backbone {backbone.name} ({digests})"
    statements = [f"the weights of {name} do not depend on the training data"]
    if backbone.frozen:
        statements.append(f"{name} makes each record's features from that record alone")
    return statements


def _plain(assumption: Any) -> dict[str, str]:  # noqa: ANN401
    return {name: str(value) for name, value in asdict(assumption).items()}

"""A certificate's claims, computed from the parameters by the service and by verifiers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from app.accounting.guarantees import GaussianGuarantee, Guarantee, PointGuarantee
from app.accounting.terms import asserted, enforced
from app.domain.architectures import BackboneDigest, BaseDigest
from app.domain.errors import TargetNotMetError
from app.planning.mechanisms.mechanism import Mechanism

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

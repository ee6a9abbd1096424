"""A certificate's claims, computed from the parameters by the service and by verifiers."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from app.accounting.guarantees import GaussianGuarantee, Guarantee, PointGuarantee
from app.accounting.terms import asserted, enforced
from app.domain.backbone import BackboneDigest
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
) -> dict[str, Any]:
    """Return a statement's fields ``guarantee``, ``accountant`` and ``assumptions``.

    Args:
        mechanism: with its parameters.
        epsilon: of the target.
        delta: of the target.
        backbone: the public weights that the model stands on.

    Raises:
        ParameterError, CalibrationError: no guarantee can be computed.
        TargetNotMetError: the resulting guarantee is weaker than the target.
    """
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
            *_about(backbone),
        ],
    }


def exclusion_assumptions(backbone: BackboneDigest | None) -> list[dict[str, str]]:
    """Return the assumptions behind the statement that records never influenced the weights."""
    held_out = enforced("the records were held out: no gradient ever read them")
    return [*(_plain(assumption) for assumption in held_out), *_about(backbone)]


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


def _about(backbone: BackboneDigest | None) -> list[dict[str, str]]:
    if backbone is None:
        return []
    name = f"the backbone {backbone.name} (sha256 {backbone.sha256})"
    statements = [f"the weights of {name} do not depend on the training data"]
    if backbone.frozen:
        statements.append(f"{name} makes each record's features from that record alone")
    return [_plain(assumption) for assumption in asserted(*statements)]


def _plain(assumption: Any) -> dict[str, str]:  # noqa: ANN401
    return {name: str(value) for name, value in asdict(assumption).items()}

"""What a run measures of its result, outside of the guarantee."""

from collections.abc import Mapping
from typing import Any

from app.certificates.membership_attack import measured_audit, unmeasured_audit
from app.certificates.statement import CertifyingPhase
from app.domain.states import Phase
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.tracked import Tracked
from workers.data.loading import RunData
from workers.leases.lease import Lease
from workers.networks.network import Network
from workers.seal.certified import Certified


def evaluate(lease: Lease, data: RunData, network: Certified | Network) -> dict[str, Any]:
    """Return the metrics on held-out records, if there are any."""
    with lease.phase(Phase.EVALUATING):
        if len(data.held_out) == 0:
            return {"held_out_records": 0}
        measured = network.evaluate(data.held_out)
        return {
            "held_out_records": measured.examples,
            "held_out_loss": measured.mean_loss,
            "metrics": dict(measured.metrics),
            "headline": measured.headline,
        }


def noise_curve(
    data: RunData, certified: Certified, phase: CertifyingPhase, evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what more noise, and so more capacity, would cost a tracked head."""
    mechanism = mechanism_named(phase.plan.mechanism).of(phase.parameters)
    noise_std = mechanism.history.noise_std() if isinstance(mechanism, Tracked) else 0.0
    if noise_std == 0 or len(data.held_out) == 0:
        return {}
    released = {
        "noise_std": noise_std,
        "score": evaluation["metrics"][evaluation["headline"]],
    }
    return {"noise_curve": [released, *certified.noise_curve(data.held_out, noise_std=noise_std)]}


def audit(data: RunData, certified: Certified | None) -> dict[str, Any]:
    """Return the certificate's ``audit`` field; the seal kept the first figure."""
    counts = {"forgotten": len(data.forgotten), "held_out": len(data.held_out)}
    if certified is None or certified.auc_before is None:
        return unmeasured_audit(**counts)
    after = certified.membership_auc(forgotten=data.forgotten, held_out=data.held_out)
    return measured_audit(auc_before=certified.auc_before, auc_after=after, **counts)

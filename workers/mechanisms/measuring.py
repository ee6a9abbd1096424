"""What a run measures of its result, outside of the guarantee."""

from collections.abc import Mapping
from typing import Any

from app.domain.states import Phase
from app.evidence.certificates.statement import CertifyingPhase
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.tracked import Tracked
from workers.data.loading import RunData
from workers.leases.lease import Lease
from workers.seal.certified import Certified
from workers.training.networks.network import Network


def evaluate(lease: Lease, data: RunData, network: Certified | Network) -> dict[str, Any]:
    """Return the metrics on held-out records, if there are any, and the baseline's beside them."""
    with lease.phase(Phase.EVALUATING):
        if len(data.held_out) == 0:
            return {"held_out_records": 0}
        measured = network.evaluate(data.held_out)
        compared = {"baseline": measured.baseline, "higher_is_better": measured.higher_is_better}
        return {
            "held_out_records": measured.examples,
            "held_out_loss": measured.mean_loss,
            "metrics": dict(measured.metrics),
            "headline": measured.headline,
            **{name: value for name, value in compared.items() if value is not None},
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

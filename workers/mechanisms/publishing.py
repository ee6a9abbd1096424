"""The last of a run: its result is measured, stored, checked by the offline verifier, published.

The noise source counts the numbers it gives out, and the claim follows from the certificate's
parameters. So a run that deviated from its plan, or whose noise was not added, is not published.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from app.domain.errors import TargetNotMetError
from app.domain.plan import TrainingKind
from app.domain.states import Basis, Phase
from app.evidence.certificates.parameters import draws_of
from app.evidence.certificates.statement import CertifyingPhase
from app.ledger import publication, runs
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.mechanism import Draws
from app.planning.mechanisms.tracked import Tracked
from app.runtime.failpoints import reach
from app.services import Services
from app.storage.blobs import StoredBlob
from app.storage.encryption import Content
from app.storage.weights_content import WeightsContent
from workers.data.loading import RunData
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.seal.certified import Certified
from workers.training.evaluate import Evaluation, NothingToMeasureError


def evaluate(lease: Lease, evaluated: Callable[[], Evaluation]) -> dict[str, Any]:
    """Return the metrics on held-out records, if there are any, and the baseline's beside them."""
    with lease.phase(Phase.EVALUATING):
        try:
            measured = evaluated()
        except NothingToMeasureError:
            return {"held_out_records": 0}
        fewer = [{"members": count, "score": score} for count, score in measured.fewer.items()]
        compared = {"baseline": measured.baseline, "higher_is_better": measured.higher_is_better}
        return {
            "held_out_records": measured.examples,
            "held_out_loss": measured.mean_loss,
            "metrics": dict(measured.metrics),
            "headline": measured.headline,
            **{name: value for name, value in compared.items() if value is not None},
            **({"fewer_members": fewer} if fewer else {}),
        }


def noise_curve(
    data: RunData, certified: Certified, phase: CertifyingPhase, evaluation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what more noise, and so more capacity, would cost a tracked head."""
    mechanism = mechanism_named(phase.plan.mechanism).of(phase.parameters)
    noise_std = mechanism.history.noise_std() if isinstance(mechanism, Tracked) else 0.0
    if noise_std == 0 or not evaluation["held_out_records"]:
        return {}
    released = {
        "noise_std": noise_std,
        "score": evaluation["metrics"][evaluation["headline"]],
    }
    return {"noise_curve": [released, *certified.noise_curve(data.held_out, noise_std=noise_std)]}


_ROUNDING = 1e-9


def require_drawn(
    phase: CertifyingPhase, drawn: Mapping[float, int], *, basis: Basis, trains: bool, size: int
) -> None:
    """Check a run's noise: ``drawn`` counts the numbers that the source gave out, by deviation.

    ``trains`` says whether the run trained the network, of ``size`` weights, from scratch.

    Raises:
        TargetNotMetError: some of the claimed noise was not drawn.
    """
    if phase.plan.training is TrainingKind.PRIVATE:
        # Later certificates rest on its training, whatever this one says.
        settings = phase.plan.settings
        noise_std = settings["noise_multiplier"] * settings["gradient_clip"]
        count = int(settings["private_steps"]) * size
        claimed = [Draws(noise_std=noise_std, count=count)] if trains else []
    else:
        claimed = draws_of(phase.plan.mechanism, phase.parameters, basis=basis)
    for noise_std in {draws.noise_std for draws in claimed}:
        least = noise_std * (1 - _ROUNDING)
        needed = sum(draws.count for draws in claimed if draws.noise_std >= least)
        if sum(count for std, count in drawn.items() if std >= least) < needed:
            raise TargetNotMetError("the run drew less noise than its certificate would claim")


def stored(
    services: Services,
    check: Callable[[], None],
    reserve: Callable[[Session], str],
    content: Content,
) -> StoredBlob:
    """Write a result to an object; the run is recorded as its writer before it exists.

    ``reserve`` returns the object's id, if the worker still holds what it makes; ``check`` says
    whether this worker may go on.
    """

    def reserved() -> str:
        with services.database.transaction() as session:
            return reserve(session)

    blob_id = outlast_outages(check, reserved)
    return outlast_outages(check, lambda: services.blobs.fill(blob_id, content))


def stored_by_run(services: Services, lease: Lease, content: Content, kind: str) -> StoredBlob:
    """Write a run's own result."""
    reserve = partial(
        runs.reserve_blob, run_id=lease.run_id, fencing_token=lease.fencing_token, kind=kind
    )
    return stored(services, lease.check, reserve, content)


def publish_result(
    services: Services, lease: Lease, result: publication.RunResult, content: WeightsContent
) -> None:
    """Publish the result if the offline verifier accepts it, in an outage once it is over.

    Only the transaction decides whether this worker still holds the run: after a commit whose
    answer was lost the heartbeat would find the run over, as if another worker had ended it.

    Raises:
        HeadMovedError: an ensemble's members have to be put together again.
    """

    def publish() -> None:
        publication.publish_checked(
            services.database,
            services.signer,
            run_id=lease.run_id,
            fencing_token=lease.fencing_token,
            result=result,
            content=content,
            may_go_on=lease.check_stop,
        )

    reach("before_publish")
    outlast_outages(lease.check_stop, publish)
    reach("after_publish")

"""One run, from lease to publication.

 1. Lease the run: a fencing token and a heartbeat.
 2. Read the records into memory; from then on only retained ones are there, and, if the policy
    asks for an audit, those to forget: for two figures, which nothing else depends on.
 3. Put the start behind a seal: trained here, uploaded, or the lineage's head.
 4. Take noisy steps until the odometer meets the target. Only then the seal opens.
 5. Fine-tune without noise on retained records, and evaluate.
    (Where retraining is the plan, it takes the place of steps 3 to 5: a fresh network, trained on
    retained records alone, is exactly what the target asks for.)
 6. Publish version, certificate and obligations in one transaction.
 7. Retire what was replaced, erase what was forgotten.

Nothing before step 4's end reaches a disk, a queue or a log. A crash anywhere starts the run again
from the same head with fresh noise.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray
from torch import nn

from app.accounting import retraining
from app.certificates.audit import measured_audit, unmeasured_audit
from app.certificates.statement import CertifyingPhase
from app.domain.errors import ExpungeError
from app.domain.plan import Plan
from app.domain.states import FirstRelease, Phase, RunKind
from app.ledger import settlement
from app.services import Services
from app.storage.blobs import StoredBlob
from workers.lease import Lease
from workers.loading import ModelSpec, RunData, load_model, load_records, load_start
from workers.mechanisms.catalogue import mechanism_for
from workers.mechanisms.frame import ReferenceFrame
from workers.noise import SecureNoise
from workers.patience import outlast_outages
from workers.reporting import epsilon_reporter, loss_reporter
from workers.sealed import Certified, Sealed
from workers.training.architectures import build
from workers.training.device import choose_device
from workers.training.network import Network


def execute(services: Services, lease: Lease) -> None:
    """Carry out a leased run and publish its result.

    Outages of Postgres are outlasted.

    Raises:
        LeaseLostError: another worker holds the run; nothing was published.
        RunInterruptedError: this worker was told to stop; nothing was published.
        RunFailedError, TargetNotMetError, PlanError: trying again cannot help.
    """
    plan = Plan.from_json(lease.plan)
    model = outlast_outages(lease.check, lambda: load_model(services, lease))
    with lease.phase(Phase.LOADING):
        data = outlast_outages(lease.check, lambda: load_records(services, lease, model))
        factory = _factory(services, model)
    certified: Certified | None = None
    if lease.kind is RunKind.TRAIN and model.policy.first_release is FirstRelease.AS_TRAINED:
        tensors, phase, evaluation = _train_openly(lease, model, data, factory)
    else:
        certified, phase = _certify(services, lease, model, data, factory, plan)
        evaluation = _evaluate(lease, data, certified)
        tensors = certified.tensors()
    if model.policy.audit:
        evaluation["audit"] = _audit(data, certified)
    certified_at = datetime.now(UTC)
    with lease.phase(Phase.PUBLISHING):
        result = settlement.RunResult(
            weights=_store(services, lease, safetensors.numpy.save(dict(tensors))),
            phase=phase,
            evaluation=evaluation,
            certified_at=certified_at,
            phase_seconds=lease.phase_seconds,
        )
        _publish(services, lease, result)


def _certify(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    factory: Callable[[], nn.Module],
    plan: Plan,
) -> tuple[Certified, CertifyingPhase]:
    """Return weights that meet the plan's target, and what it took."""
    sealed = Sealed(factory, epsilon=plan.epsilon, delta=plan.delta, device=choose_device())
    if plan.mechanism == retraining.NAME:
        if data.auditable:
            start = outlast_outages(lease.check, lambda: load_start(services, lease))
            sealed.audit(forgotten=data.forgotten, held_out=data.held_out, start=start)
        return _retrain(lease, model, data, plan, sealed)
    _start(services, lease, model, data, sealed)
    if data.auditable:
        sealed.audit(forgotten=data.forgotten, held_out=data.held_out)
    certified, phase = _unlearn(lease, model, data, factory, plan, sealed)
    _fine_tune(lease, model, data, plan, certified)
    return certified, phase


def _retrain(
    lease: Lease, model: ModelSpec, data: RunData, plan: Plan, sealed: Sealed
) -> tuple[Certified, CertifyingPhase]:
    """Train a fresh network on retained records alone: nothing of the old one is read."""
    with lease.phase(Phase.TRAINING):
        sealed.retrain(
            data.retain,
            model.recipe,
            epochs=model.recipe.epochs,
            on_progress=lambda step, steps: lease.report(step=step, total_steps=steps),
        )
    phase = CertifyingPhase(plan=plan, parameters={}, frame=None, noise_generator=None)
    return sealed.open(), phase


def _factory(services: Services, model: ModelSpec) -> Callable[[], nn.Module]:
    def factory() -> nn.Module:
        return build(
            model.architecture,
            input_shape=model.schema.shape,
            classes=model.schema.classes,
            allowed_factories=services.settings.allowed_factories,
        )

    return factory


def _start(
    services: Services, lease: Lease, model: ModelSpec, data: RunData, sealed: Sealed
) -> None:
    """Put the start behind the seal: trained here, uploaded, or the lineage's head."""
    if lease.kind is not RunKind.TRAIN:
        sealed.load(outlast_outages(lease.check, lambda: load_start(services, lease)))
        return
    with lease.phase(Phase.TRAINING):
        sealed.train(
            data.retain,
            model.recipe,
            epochs=model.recipe.epochs,
            on_progress=lambda step, steps: lease.report(step=step, total_steps=steps),
        )


def _unlearn(
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    factory: Callable[[], nn.Module],
    plan: Plan,
    sealed: Sealed,
) -> tuple[Certified, CertifyingPhase]:
    frame = ReferenceFrame.of(factory)
    noise = SecureNoise()
    with lease.phase(Phase.UNLEARNING):
        sealed.unlearn(
            mechanism_for(plan),
            data.retain,
            frame=frame,
            noise=noise,
            batch_size=model.recipe.batch_size,
            on_progress=epsilon_reporter(lease, plan),
        )
        noise.destroy()
        certified = sealed.open()
    return certified, CertifyingPhase(
        plan=plan,
        parameters=_as_taken(plan, certified.noisy_steps),
        frame=frame.to_json(),
        noise_generator=noise.name,
    )


def _as_taken(plan: Plan, steps: int) -> dict[str, float]:
    """Return the accountant's parameters with the steps that were taken, not those planned."""
    taken = dict(plan.parameters)
    if "steps" in taken:
        taken["steps"] = steps
    return taken


def _fine_tune(
    lease: Lease, model: ModelSpec, data: RunData, plan: Plan, certified: Certified
) -> None:
    spent = certified.noisy_steps / data.retain.steps_per_epoch(model.recipe.batch_size)
    with lease.phase(Phase.FINE_TUNING):
        certified.fine_tune(
            data.retain,
            model.recipe,
            epochs=max(0.0, plan.budget_epochs - spent),
            on_progress=loss_reporter(lease),
        )


def _evaluate(lease: Lease, data: RunData, network: Certified | Network) -> dict[str, Any]:
    with lease.phase(Phase.EVALUATING):
        if len(data.held_out) == 0:
            return {"held_out_records": 0}
        measured = network.evaluate(data.held_out)
        return {
            "held_out_records": measured.examples,
            "held_out_accuracy": measured.accuracy,
            "held_out_loss": measured.mean_loss,
        }


def _audit(data: RunData, certified: Certified | None) -> dict[str, Any]:
    """Return the certificate's audit section; the figure of the start was kept by the seal."""
    counts = {"forgotten": len(data.forgotten), "held_out": len(data.held_out)}
    if certified is None or certified.auc_before is None:
        return unmeasured_audit(**counts)
    after = certified.membership_auc(forgotten=data.forgotten, held_out=data.held_out)
    return measured_audit(auc_before=certified.auc_before, auc_after=after, **counts)


def _train_openly(
    lease: Lease, model: ModelSpec, data: RunData, factory: Callable[[], nn.Module]
) -> tuple[Mapping[str, NDArray[Any]], None, dict[str, Any]]:
    """Train a model that its policy publishes as it is; there is nothing to seal."""
    network = Network(factory, device=choose_device())
    with lease.phase(Phase.TRAINING):
        network.train(
            data.retain,
            model.recipe,
            epochs=model.recipe.epochs,
            on_progress=loss_reporter(lease),
        )
    return network.tensors(), None, _evaluate(lease, data, network)


def _store(services: Services, lease: Lease, content: bytes) -> StoredBlob:
    blob_id = outlast_outages(lease.check, lambda: services.blobs.reserve("weights"))
    return outlast_outages(lease.check, lambda: services.blobs.fill(blob_id, content))


def _publish(services: Services, lease: Lease, result: settlement.RunResult) -> None:
    """Publish; repeating it after a commit whose answer was lost publishes nothing twice."""

    def publish() -> None:
        with services.database.transaction() as session:
            settlement.publish(
                session,
                services.blobs,
                services.signer,
                run_id=lease.run_id,
                fencing_token=lease.fencing_token,
                result=result,
            )

    try:
        outlast_outages(lease.check, publish)
    except ExpungeError:
        # It may have been published nevertheless, by a commit whose answer was lost.
        services.blobs.abandon(result.weights.id)
        raise

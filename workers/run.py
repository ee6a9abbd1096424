"""One run, from lease to publication.

 1. Lease the run: a fencing token and a heartbeat. Try the network on random records: whatever its
    code raises can be shown in full, because no record was read.
 2. Fix the plan and read the records into memory, or find which shards they are to be streamed
    from. From then on only retained records are used and, if the policy asks for a membership
    attack, those to forget: for two figures that nothing depends on.
 3. Seal the initial weights: trained here, uploaded, or the lineage's head. Until the seal opens,
    the process cannot write to any file (``ram_only``).
 4. Take noisy steps until the odometer meets the target. Only then does the seal open.
    (Retraining needs none: a fresh network trained on retained records meets the target exactly.
    A ridge head is solved from sums, of which the forgotten records' part was subtracted in 2.
    Of an ensemble only the members concerned are trained anew, each sealed by itself.)
 5. Fine-tune without noise on retained records, unless the steps are accounted for; evaluate.
 6. Publish version, certificate and obligations in one transaction, if the drawn noise is what the
    certificate claims and the offline verifier accepts the bundle.
 7. Retire what was replaced, erase what was forgotten.

Nothing reaches a disk, a queue or a log before the end of step 4. After a crash the run starts
again from the same head with fresh noise.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray
from torch import nn

from app.certificates.checkpoint import origin_of
from app.certificates.noise import Noise, draws_of, grid_of
from app.certificates.signing import payload_from
from app.certificates.statement import CertifyingPhase
from app.certificates.trusted_keys import TrustedKey, TrustedKeys
from app.certificates.verification import check_place, check_statement
from app.certificates.weights_file import tensors_sha256
from app.domain.architectures.base import BaseDigest
from app.domain.errors import DraftOutdatedError
from app.domain.plan import Plan, TrainingKind
from app.domain.states import Basis, Phase, RunKind
from app.failpoints import halfway, reach
from app.ledger import publication, runs
from app.ledger.certificates import certifying
from app.planning.mechanisms.catalogue import mechanism_named, mechanism_of
from app.registry import statistics_file
from app.services import Services
from app.storage.blobs import StoredBlob
from workers.data.backbone import publishable, starting
from workers.data.loading import ModelSpec, RunData, load_model, load_start
from workers.data.run_records import load_records
from workers.distributed.orders import assembled, counted, divided_among
from workers.distributed.team import ALONE, Team
from workers.ensembles import run as ensembles
from workers.exact.arithmetic import kernels
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.leases.reporting import epsilon_reporter, loss_reporter, step_reporter
from workers.mechanisms.catalogue import rule_of
from workers.networks.base import pinned
from workers.networks.network import Network, Tensors
from workers.noise.generators import SecureNoise
from workers.rehearsal.rehearse import rehearse
from workers.rehearsal.starts import require_drawn_start
from workers.seal.ram_only import ram_only
from workers.seal.sealed import Certified, Sealed
from workers.seal.witness import require_drawn
from workers.training import measuring
from workers.training.device import choose_device
from workers.training.lineage import Lineage, lineage_of
from workers.training.optimizers import optimizer_of


def execute(services: Services, lease: Lease, team: Team = ALONE) -> None:
    """Execute a leased run and publish its result; outages of the stores are waited out.

    ``team`` are the processes that take part; this one leads them.

    Raises:
        LeaseLostError: another worker holds the run; nothing was published.
        RunInterruptedError: this worker was asked to stop; nothing was published.
        RunFailedError, TargetNotMetError, PlanError: retrying cannot help.
    """
    reach("after_lease")
    model = outlast_outages(lease.check, lambda: load_model(services, lease.model_id))
    with lease.phase(Phase.LOADING):
        network = _rehearsed(services, lease, model)
        size, base = network.flat.size, network.base
        del network
        outlast_outages(lease.check, lambda: _require_same_base(services, lease, base))
        factory = model.factory(services.settings)
        fresh = pinned(starting(model.backbone, factory), base)
        openly = lease.kind is RunKind.TRAIN and model.releases_as_trained
        devices = 1 if openly else divided_among(team, lease.plan)
        data = outlast_outages(
            lease.check,
            lambda: load_records(services, lease, model, dimension=size, devices=devices),
        )
    with closing(data):
        _carry_out(services, lease, model, data, factory, fresh, base, team)


def _carry_out(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    factory: Callable[[], nn.Module],
    fresh: Callable[[], nn.Module],
    base: BaseDigest | None,
    team: Team,
) -> None:
    """Train or unlearn, measure, and publish."""
    certified: Certified | None = None
    phase: CertifyingPhase | None
    made: ensembles.Made | None = None
    if data.members is not None:
        made, evaluation = ensembles.carry_out(services, lease, model, data, data.members, fresh)
        tensors, phase = made.tensors, made.phase(data.plan)
    elif lease.kind is RunKind.TRAIN and model.releases_as_trained:
        tensors, phase, evaluation = _train_openly(lease, model, data, fresh)
    else:
        certified, phase = _certify(services, lease, model, data, factory, fresh, base, team)
        tensors = certified.tensors()
        evaluation = measuring.evaluate(lease, data, certified)
        evaluation |= measuring.noise_curve(data, certified, phase, evaluation)
    if model.policy.audit and made is None:
        evaluation["audit"] = measuring.audit(data, certified)
    certified_at = datetime.now(UTC)
    with lease.phase(Phase.PUBLISHING):
        content = safetensors.numpy.save(
            publishable(model.backbone, tensors),
            metadata=replace(model.description, base=base).to_metadata(),
        )
        result = publication.RunResult(
            weights=_store(services, lease, content),
            tensors_sha256=tensors_sha256(content),
            statistics=_store_sums(services, lease, data),
            phase=phase,
            base=base,
            evaluation=evaluation,
            certified_at=certified_at,
            phase_seconds=lease.phase_seconds,
            members=() if made is None else made.members_in(content),
        )
        _publish(services, lease, result, content)


def _certify(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    factory: Callable[[], nn.Module],
    fresh: Callable[[], nn.Module],
    base: BaseDigest | None,
    team: Team,
) -> tuple[Certified, CertifyingPhase]:
    """Return weights that meet the plan's target, and how it was met.

    ``fresh`` builds the network on its public weights, ``factory`` without a backbone's.
    """
    plan = data.plan
    mechanism = mechanism_named(plan.mechanism)
    trains = lease.kind is RunKind.TRAIN or mechanism.trains_anew
    lineage = lineage_of(plan, model, data, factory)
    team = assembled(
        team,
        model_id=lease.model_id,
        plan=plan,
        base=base,
        frame=lineage.frame,
        records=len(data.retain),
    )
    noise = SecureNoise(choose_device())
    sealed = Sealed(
        fresh,
        epsilon=plan.epsilon,
        delta=plan.delta,
        device=choose_device(),
        dtype=lineage.dtype,
        task=model.task,
        team=team,
    )
    start: Tensors = {}
    if data.auditable or not trains:
        start = outlast_outages(lease.check, lambda: load_start(services, lease))
    reach("after_load")
    training = halfway("mid_training", step_reporter(lease))
    progress = halfway("mid_noise", epsilon_reporter(lease, plan))
    try:
        with ram_only():
            if data.auditable:
                sealed.audit(start, forgotten=data.forgotten, held_out=data.held_out)
            if trains:
                with lease.phase(Phase.TRAINING):
                    lineage.train(sealed, noise, training)
            else:
                sealed.load(start)
            del start
            if mechanism.trains_anew:
                sealed.retrained()
            else:
                with lease.phase(Phase.UNLEARNING):
                    sealed.unlearn(
                        rule_of(plan),
                        lineage.feed,
                        frame=lineage.frame,
                        noise=noise,
                        on_progress=progress,
                    )
            certified = sealed.open()
        reach("at_target")
    finally:
        noise.destroy()
        sealed.destroy()
    if mechanism.fine_tunes:
        _fine_tune(lease, model, data, certified)
    drawn = counted(team, noise.drawn)
    phase = _phase(lease, plan, lineage, certified, team, generator=noise.name, drawn=drawn)
    require_drawn(phase, drawn, basis=_basis(lease), trains=trains, size=certified.size)
    return certified, phase


def _rehearsed(services: Services, lease: Lease, model: ModelSpec) -> Network:
    """Try the network before any record is read; return it, untrained.

    Only here are exceptions of the operator's code shown in full. The recipe's groups must have
    parameters.
    """
    trains_privately = (
        lease.kind is RunKind.TRAIN and Plan.from_json(lease.plan).training is TrainingKind.PRIVATE
    )
    factory = model.factory(services.settings, in_full=True)
    require_drawn_start(factory)
    network = rehearse(
        starting(model.backbone, factory),
        model.task,
        model.form,
        device=choose_device(),
        private=trains_privately,
    )
    optimizer_of(network.module, model.recipe)
    return network


def _require_same_base(services: Services, lease: Lease, base: BaseDigest | None) -> None:
    with services.database.transaction() as session:
        certifying.require_same_base(session, lease.model_id, base)


def _basis(lease: Lease) -> Basis:
    return Basis.UNLEARNED if lease.kind is RunKind.UNLEARN else Basis.CERTIFIED_RELEASE


def _phase(
    lease: Lease,
    plan: Plan,
    lineage: Lineage,
    certified: Certified,
    team: Team,
    *,
    generator: str,
    drawn: Mapping[float, int],
) -> CertifyingPhase:
    """Return what the certificate says of the run: what happened, not what was planned."""
    parameters = mechanism_of(plan).taken(plan, certified.noisy_steps).parameters()
    draws = draws_of(plan.mechanism, parameters, basis=_basis(lease))
    noise: Noise | None = None
    if draws:
        count = sum(drawn.values())
        noise = Noise(generator, grid=grid_of(plan.mechanism, draws), drawn=count)
    return CertifyingPhase(
        plan=plan,
        parameters=parameters,
        frame=None if lineage.frame is None else lineage.frame.to_json(),
        tensors=certified.trained,
        noise=noise,
        steps=certified.noisy_steps,
        devices=team.devices,
        parallelism=team.parallelism,
        arithmetic=kernels() if plan.training is TrainingKind.EXACT else None,
    )


def _fine_tune(lease: Lease, model: ModelSpec, data: RunData, certified: Certified) -> None:
    spent = certified.noisy_steps / data.retain.steps_per_epoch(model.recipe.batch_size)
    with lease.phase(Phase.FINE_TUNING):
        certified.fine_tune(
            data.retain,
            model.recipe,
            epochs=max(0.0, data.plan.budget_epochs - spent),
            held_out=data.held_out,
            on_progress=halfway("mid_fine_tune", loss_reporter(lease)),
        )


def _train_openly(
    lease: Lease, model: ModelSpec, data: RunData, fresh: Callable[[], nn.Module]
) -> tuple[Mapping[str, NDArray[Any]], None, dict[str, Any]]:
    """Train a model that its policy releases without noise, so it needs no seal."""
    network = Network(fresh, device=choose_device(), task=model.task)
    with lease.phase(Phase.TRAINING):
        network.train(
            data.retain,
            model.recipe,
            epochs=model.recipe.epochs,
            held_out=data.held_out,
            on_progress=halfway("mid_training", loss_reporter(lease)),
        )
    return network.tensors(), None, measuring.evaluate(lease, data, network)


def _store(
    services: Services, lease: Lease, content: bytes, *, kind: str = "weights"
) -> StoredBlob:
    """Write a result to an object; the run is recorded as its writer before it exists."""

    def reserve() -> str:
        with services.database.transaction() as session:
            return runs.reserve_blob(
                session, services.blobs, lease.run_id, lease.fencing_token, kind=kind
            )

    blob_id = outlast_outages(lease.check, reserve)
    return outlast_outages(lease.check, lambda: services.blobs.fill(blob_id, content))


def _store_sums(services: Services, lease: Lease, data: RunData) -> StoredBlob | None:
    """Write the retained records' sums, if the model is made of them."""
    if data.summed is None:
        return None
    return _store(services, lease, data.summed.to_file().to_bytes(), kind=statistics_file.KIND)


def _publish(
    services: Services, lease: Lease, result: publication.RunResult, content: bytes
) -> None:
    """Publish the result if the offline verifier accepts it.

    Repeating it after a commit whose answer was lost publishes nothing twice. Only the transaction
    decides whether this worker still holds the run: after such a commit the heartbeat would find
    the run over, as if another worker had ended it.
    """
    key = TrustedKey(services.signer.public_key)

    def examine(bundle: Mapping[str, Any]) -> None:
        origin = origin_of(bundle["log"]["checkpoint"].encode())
        trusted = TrustedKeys(origin, (key,)).to_bytes()
        check_place(bundle=json.dumps(bundle).encode(), trusted=trusted)

    def publish() -> None:
        with services.database.transaction() as session:
            checked = publication.draft(session, run_id=lease.run_id, result=result)
        if checked is not None:
            check_statement(payload_from(checked), weights=content)
        with services.database.transaction() as session:
            publication.publish(
                session,
                services.blobs,
                services.signer,
                run_id=lease.run_id,
                fencing_token=lease.fencing_token,
                result=result,
                checked=checked,
                examine=examine,
            )

    def publish_when_current() -> None:
        while True:
            try:
                return publish()
            except DraftOutdatedError:
                lease.check_stop()

    reach("before_publish")
    outlast_outages(lease.check_stop, publish_when_current)
    reach("after_publish")

"""One run, from lease to publication.

 1. Lease the run: a fencing token and a heartbeat. Try the network on random records: whatever its
    code raises can be shown in full, because no record was read.
 2. Fix the plan and read the records into memory, or find which shards they are to be streamed
    from. From then on only retained records are used.
 3. Seal the initial weights: trained here, uploaded, or the lineage's head. Until the seal opens,
    the process cannot write to any file (``ram_only``).
 4. Take noisy steps until the odometer meets the target. Only then does the seal open.
    (Retraining needs none: a fresh network trained on retained records meets the target exactly.
    A ridge head is solved from sums, of which the forgotten records' part was subtracted in 2.
    Of an ensemble, members are left out without any of this, or some are trained anew, each sealed
    by itself.)
 5. Fine-tune without noise on retained records, unless the steps are accounted for; evaluate.
 6. Publish version, certificate and obligations in one transaction, if the drawn noise is what the
    certificate claims and the offline verifier accepts the bundle.
 7. Retire what was replaced, erase what was forgotten.

Nothing reaches a disk, a queue or a log before the end of step 4. After a crash the run starts
again from the same head with fresh noise.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import nn

from app.domain import provenance
from app.domain.architectures import BaseDigest
from app.domain.errors import HeadMovedError
from app.domain.plan import Plan, TrainingKind
from app.domain.provenance import Provenance
from app.domain.states import Basis, Phase, RunKind
from app.evidence.certificates.parameters import draws_of, grid_of
from app.evidence.certificates.schema import NoiseSection
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import WeightsFile, tensors_sha256
from app.ledger.certificates import issuing
from app.ledger.leaving_out import LeavingOut, Persist
from app.ledger.publication import RunResult
from app.planning.mechanisms.catalogue import mechanism_named, mechanism_of
from app.planning.mechanisms.mechanism import Deterministic
from app.registry import statistics_file
from app.registry.tables import ModelRow
from app.runtime.failpoints import halfway, reach
from app.services import Services
from app.storage.weights_content import WeightsContent
from workers.data.backbone import publishable, starting
from workers.data.loading import ModelSpec, RunData, load_model, load_start
from workers.data.run_records import load_records
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.leases.reporting import epsilon_reporter, loss_reporter, step_reporter
from workers.mechanisms import publishing
from workers.mechanisms.ensembles.run import EnsembleRun, Made
from workers.mechanisms.lineage import fine_tune, lineage_of, meet_target, sealing
from workers.mechanisms.publishing import publish_result, require_drawn, stored_by_run
from workers.mechanisms.rehearsal import rehearse_model, require_drawn_start
from workers.seal.certified import Certified
from workers.seal.ram_only import ram_only
from workers.training.exact.arithmetic import kernels
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.networks.held import pinned, start_of
from workers.training.networks.network import Network, Tensors
from workers.training.optimizers import optimizer_of
from workers.training.orders import (
    Beginning,
    Order,
    assembled,
    divided_among,
    require_same_frame,
)
from workers.training.seed import Seed
from workers.training.team import ALONE, Team, choose_device

_Found = TypeVar("_Found")


@dataclass(frozen=True, eq=False)
class _Run:
    """What all parts of a run are about.

    Attributes:
        base: the digest of the network's public tensors.
        factory: builds the network without a backbone's weights.
        fresh: builds it on its public weights.
        team: the processes that take part; this one leads them.
    """

    services: Services
    lease: Lease
    model: ModelSpec
    data: RunData
    base: BaseDigest | None
    factory: Callable[[], nn.Module]
    fresh: Callable[[], nn.Module]
    team: Team

    @property
    def basis(self) -> Basis:
        unlearns = self.lease.kind is RunKind.UNLEARN
        return Basis.UNLEARNED if unlearns else Basis.CERTIFIED_RELEASE


def execute(services: Services, lease: Lease, team: Team = ALONE) -> None:
    """Execute a leased run and publish its result; outages of the stores are waited out.

    ``team`` are the processes that take part; this one leads them.

    Raises:
        LeaseLostError: another worker holds the run; nothing was published.
        RunInterruptedError: this worker was asked to stop; nothing was published.
        RunFailedError, TargetNotMetError, PlanError: retrying cannot help.
    """
    reach("after_lease")
    if lease.kind is RunKind.UNLEARN and _left_out(services, lease):
        return
    model = outlast_outages(lease.check, lambda: load_model(services, lease.model_id))
    with lease.phase(Phase.LOADING):
        devices = 1 if _releases_openly(lease, model) else divided_among(team, lease.plan)
        network = _rehearsed(services, lease, model, team if devices > 1 else ALONE)
        size, base = network.flat.size, network.base
        network.destroy()
        del network
        outlast_outages(lease.check, lambda: _require_same_base(services, lease, base))
        factory = model.factory(services.settings)
        fresh = starting(model.backbone, factory)
        fresh = pinned(fresh, base, start_of(fresh))
        data = outlast_outages(
            lease.check,
            lambda: load_records(services, lease, model, dimension=size, devices=devices),
        )
    with closing(data):
        _carry_out(_Run(services, lease, model, data, base, factory, fresh, team))


class _Outlasting(Persist):
    """Does a step, in an outage of a store once it is over."""

    def __init__(self, lease: Lease) -> None:
        self._check = lease.check

    def __call__(self, step: Callable[[], _Found]) -> _Found:
        return outlast_outages(self._check, step)


def _left_out(services: Services, lease: Lease) -> bool:
    """Carry out a run that trains no member of an ensemble; return False for any other run."""
    run = LeavingOut(
        services.database, services.blobs, services.signer, lease.run_id, lease.fencing_token
    )
    return run.carry_out(lease.check_stop, persist=_Outlasting(lease))


def _carry_out(run: _Run) -> None:
    """Train or unlearn, measure, and publish."""
    lease, model, data = run.lease, run.model, run.data
    phase: CertifyingPhase | None
    if data.members is not None:
        ensemble = EnsembleRun(run.services, lease, model, data, data.members, run.fresh)
        trained = ensemble.train()
        while True:
            try:
                whole, evaluation = ensemble.put_together(trained)
                phase = whole.phase(data.plan)
                return _publish(run, whole.tensors, phase, evaluation, whole, whole.provenance)
            except HeadMovedError:
                lease.check_stop()
    made: Mapping[int, Provenance] = {}
    if _releases_openly(lease, model):
        tensors, phase, evaluation = _train_openly(run)
    else:
        certified, phase, origin = _certify(run)
        tensors = certified.views()
        evaluation = publishing.evaluate(lease, partial(certified.evaluate, data.held_out))
        evaluation |= publishing.noise_curve(data, certified, phase, evaluation)
        made = {} if origin is None else {0: origin}
    return _publish(run, tensors, phase, evaluation, made=made)


def _publish(
    run: _Run,
    tensors: Mapping[str, NDArray[Any]],
    phase: CertifyingPhase | None,
    evaluation: Mapping[str, Any],
    ensemble: Made | None = None,
    made: Mapping[int, Provenance] = MappingProxyType({}),
) -> None:
    services, lease, model, data = run.services, run.lease, run.model, run.data
    described = replace(model.description, base=run.base)
    if ensemble is not None:
        described = replace(described, version=ensemble.joined.number, out=ensemble.joined.out)
    with lease.phase(Phase.PUBLISHING):
        content = WeightsContent(publishable(model.backbone, tensors), described.to_metadata())
        keep = partial(stored_by_run, services, lease)
        sums = None if data.summed is None else data.summed.to_file().to_bytes()
        weights = keep(content, "weights")
        beside = partial(services.blobs.encrypt_beside, weights.id, provenance.KIND)
        result = RunResult(
            weights=weights,
            provenance=outlast_outages(lease.check, partial(beside, provenance.to_bytes(made)))
            if made
            else None,
            tensors_sha256=tensors_sha256(content),
            statistics=None if sums is None else keep(sums, statistics_file.KIND),
            phase=phase,
            base=run.base,
            evaluation=evaluation,
            phase_seconds=lease.phase_seconds,
            members={} if ensemble is None else ensemble.members_in(WeightsFile(content.opened())),
            head_id=None if ensemble is None else ensemble.joined.head_id,
        )
        publish_result(services, lease, result, content)


def _certify(run: _Run) -> tuple[Certified, CertifyingPhase, Provenance | None]:
    """Return weights that meet the plan's target, how it was met, and what they follow from.

    Only a training in one process without any noise follows from a seed, where its records are in
    memory: others' order depends on how much memory there is.
    """
    lease, model, data = run.lease, run.model, run.data
    plan = data.plan
    mechanism = mechanism_named(plan.mechanism)
    trains = lease.kind is RunKind.TRAIN or mechanism.trains_anew
    beginning = Beginning(
        lease.model_id,
        plan.to_json(),
        None if run.base is None else run.base.to_json(),
        records=len(data.retain),
        held_out=len(data.held_out),
        trains=trains,
    )
    team = assembled(run.team, beginning)
    lineage = lineage_of(plan, model, data, run.factory)
    require_same_frame(team, lineage.frame)
    exact = mechanism.trains_anew and plan.training is TrainingKind.RECIPE
    follows = exact and team.devices == 1 and isinstance(data.retain, Examples)
    seed = Seed() if follows else None
    with sealing(lineage, plan, model, run.fresh, team, seed) as (sealed, noise):
        start: Tensors = {}
        if not trains:
            start = outlast_outages(lease.check, lambda: load_start(run.services, lease))
        reach("after_load")
        training = halfway("mid_training", step_reporter(lease))
        progress = halfway("mid_noise", epsilon_reporter(lease, plan))
        with ram_only(plan.training):
            team.announce(Order.START)
            if not trains:
                sealed.load(start)
            del start
            certified = meet_target(
                lineage,
                plan,
                sealed,
                noise,
                trains=trains,
                training=training,
                noisy=progress,
                phase=lease.phase,
            )
        reach("at_target")
    if mechanism.fine_tunes:
        tuning = halfway("mid_fine_tune", loss_reporter(lease))
        with lease.phase(Phase.FINE_TUNING):
            fine_tune(certified, model, data, tuning)
    certified.gather()
    drawn = team.counted(noise)
    phase = _phase(run, lineage.frame, certified, team, generator=noise.name, drawn=drawn)
    origin = None if seed is None else seed.provenance(choose_device())
    if origin is not None:
        phase = replace(phase, arithmetic=origin.in_words())
    require_drawn(phase, drawn, basis=run.basis, trains=trains, size=certified.size)
    return certified, phase, origin


def _rehearsed(services: Services, lease: Lease, model: ModelSpec, team: Team) -> Network:
    """Try the network before any record is read; return it, untrained.

    Only here are exceptions of the operator's code shown in full. The recipe's groups must have
    parameters.
    """
    plan = Plan.from_json(lease.plan)
    trains = lease.kind is RunKind.TRAIN or mechanism_named(plan.mechanism).trains_anew
    trains_privately = trains and plan.training is TrainingKind.PRIVATE
    require_drawn_start(model.factory(services.settings, in_full=True))
    team.announce(Order.REHEARSE, model_id=lease.model_id)
    network = rehearse_model(model, services.settings, private=trains_privately, team=team)
    optimizer_of(network.module, model.recipe)
    return network


def _require_same_base(services: Services, lease: Lease, base: BaseDigest | None) -> None:
    with services.database.transaction() as session:
        model = session.get_one(ModelRow, lease.model_id)
        newest = issuing.last_certificate(session, model.id)
        issuing.require_same_base(session, model, newest, base)


def _releases_openly(lease: Lease, model: ModelSpec) -> bool:
    """Return whether the run trains what the policy releases without noise."""
    return lease.kind is RunKind.TRAIN and model.releases_as_trained


def _phase(
    run: _Run,
    frame: ReferenceFrame | None,
    certified: Certified,
    team: Team,
    *,
    generator: str,
    drawn: Mapping[float, int],
) -> CertifyingPhase:
    """Return what the certificate says of the run: what happened, not what was planned."""
    plan = run.data.plan
    by = mechanism_named(plan.mechanism)
    parameters = mechanism_of(plan).taken(plan, certified.noisy_steps).parameters()
    draws = draws_of(plan.mechanism, parameters, basis=run.basis)
    noise: NoiseSection | None = None
    if draws:
        count = sum(drawn.values())
        noise = NoiseSection(generator=generator, grid=grid_of(plan.mechanism, draws), drawn=count)
    return CertifyingPhase(
        plan=plan,
        parameters=parameters,
        frame=None if frame is None else frame.to_json(),
        tensors=certified.trained,
        noise=noise,
        steps=certified.noisy_steps,
        devices=team.devices,
        parallelism=team.parallelism,
        arithmetic=kernels(by.libraries) if issubclass(by, Deterministic) else None,
    )


def _train_openly(run: _Run) -> tuple[Mapping[str, NDArray[Any]], None, dict[str, Any]]:
    """Train a model that its policy releases without noise, so it needs no seal."""
    lease, model, data = run.lease, run.model, run.data
    network = Network(run.fresh, device=choose_device(), task=model.task)
    with lease.phase(Phase.TRAINING):
        network.train(
            data.retain,
            model.recipe,
            epochs=model.recipe.epochs,
            held_out=data.held_out,
            on_progress=halfway("mid_training", loss_reporter(lease)),
        )
    return (
        network.views(),
        None,
        publishing.evaluate(lease, partial(network.evaluate, data.held_out)),
    )

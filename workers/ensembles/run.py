"""A run of an ensemble: its own worker trains members until all are trained, by whomever.

The other members' weights are the certified version's: they never read a forgotten record.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final

import numpy as np
import safetensors.numpy
from sqlalchemy.exc import SQLAlchemyError
from torch import nn

from app.certificates.membership_attack import measured_audit, unmeasured_audit
from app.certificates.statement import CertifyingPhase
from app.certificates.weights_file import WeightsFile
from app.domain.architectures.base import BaseDigest
from app.domain.architectures.ensemble import by_member, tensor_name
from app.domain.architectures.merging import LOSS, is_offered, metric_compared, score_of
from app.domain.errors import RunFailedError
from app.domain.plan import Plan
from app.domain.states import MemberState, Phase, RunKind
from app.failpoints import halfway, reach
from app.ledger.ensembles import trainings
from app.ledger.ensembles.trainings import HeldMember
from app.services import Services
from workers.data.loading import ModelSpec, RunData, load_start
from workers.data.member_records import MemberRecords
from workers.ensembles.training import Numbers, train_member
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.leases.reporting import step_reporter
from workers.networks.ensemble import Ensemble
from workers.networks.merge import averaged
from workers.networks.network import Network, Tensors
from workers.seal.ram_only import ram_only
from workers.seal.sealed import SealedProgress
from workers.training import measuring
from workers.training.device import choose_device
from workers.training.membership_attack import membership_auc

_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Made:
    """All members after a run.

    Attributes:
        tensors: by their names in the ensemble.
        learned: the names of those that training changes, of each member.
        anew: which members the run trained.
    """

    tensors: Numbers
    learned: tuple[str, ...]
    anew: frozenset[int]

    def members_in(self, content: bytes) -> list[tuple[str, bool]]:
        """Return the digest of each member of the published file, and whether it was trained."""
        digests = WeightsFile(BytesIO(content)).digests_of_members()
        return [(digest, member in self.anew) for member, digest in enumerate(digests)]

    def phase(self, plan: Plan) -> CertifyingPhase:
        """Return how the target was met: exactly, without noise."""
        return CertifyingPhase(
            plan=plan, parameters=plan.parameters, frame=None, tensors=self.learned, noise=None
        )


def carry_out(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    records: MemberRecords,
    fresh: Callable[[], nn.Module],
) -> tuple[Made, dict[str, Any]]:
    """Train the members that are concerned; return all of them, and what they measure.

    Raises:
        RunFailedError: training diverged, or a member does not fit the others.
    """
    head: Tensors = {}
    if lease.kind is not RunKind.TRAIN:
        head = outlast_outages(lease.check, lambda: load_start(services, lease))
    reach("after_load")
    made = make(services, lease, model, data, records, fresh, head)
    reach("at_target")
    network = whole(model, fresh, made.tensors)
    evaluation = measuring.evaluate(lease, data, network)
    if model.policy.merge_margin is not None and len(data.held_out):
        evaluation |= merged(model, data, fresh, made, evaluation, model.policy.merge_margin)
    if model.policy.audit:
        evaluation["audit"] = audit(model, data, fresh, head, network)
    return made, evaluation


def make(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    records: MemberRecords,
    fresh: Callable[[], nn.Module],
    head: Tensors,
) -> Made:
    """Train the members concerned on their retained records alone, and keep the others.

    Args:
        services: where other workers are asked for help.
        lease: of the run.
        model: the ensemble.
        data: of the run.
        records: of the members to be trained.
        fresh: builds one member, untrained, on its public weights if there are any.
        head: the certified version's tensors; empty if there is none.

    Raises:
        RunFailedError: training diverged, or a member does not fit the others.
    """
    network = Network(fresh, device=choose_device(), task=model.task)
    learned, base = tuple(network.flat.shapes), network.base
    del network
    found: dict[int, Numbers] = dict(_kept(head, records, model.architecture.networks))
    anew = list(records.seqs)
    if anew:
        with lease.phase(Phase.TRAINING):
            found |= _trained_here(services, lease, model, data.plan, records, fresh)
            found |= _handed_over(services, lease, base)
    return Made(
        tensors={
            tensor_name(member, name): tensor
            for member, own in sorted(found.items())
            for name, tensor in own.items()
        },
        learned=tuple(tensor_name(member, name) for member in sorted(found) for name in learned),
        anew=frozenset(anew),
    )


def whole(model: ModelSpec, fresh: Callable[[], nn.Module], tensors: Tensors) -> Network:
    """Return the ensemble with these tensors."""
    task, count = model.description.task, model.architecture.networks
    network = Network(
        lambda: Ensemble((fresh() for _ in range(count)), task),
        device=choose_device(),
        task=model.task,
    )
    network.load(tensors)
    return network


def merged(
    model: ModelSpec,
    data: RunData,
    fresh: Callable[[], nn.Module],
    made: Made,
    evaluation: Mapping[str, Any],
    margin: float,
) -> dict[str, Any]:
    """Return the certificate's ``merged`` field: whether the members' average is offered.

    Nothing, if its score is not a number: such an average is useless.
    """
    found = by_member(made.tensors) or {}
    members = [
        {own: made.tensors[name] for own, name in names.items()}
        for _, names in sorted(found.items())
    ]
    network = Network(fresh, device=choose_device(), task=model.task)
    network.load(averaged(members))
    metric = metric_compared(evaluation["headline"])
    measured = network.evaluate(data.held_out)
    score = measured.mean_loss if metric == LOSS else measured.metrics.get(metric)
    ensemble = score_of(evaluation, metric)
    if score is None or ensemble is None or not math.isfinite(score):
        return {}
    offered = is_offered(ensemble=ensemble, merged=score, margin=margin, metric=metric)
    return {"merged": {"metric": metric, "score": score, "margin": margin, "offered": offered}}


def audit(
    model: ModelSpec,
    data: RunData,
    fresh: Callable[[], nn.Module],
    head: Tensors,
    network: Network,
) -> dict[str, Any]:
    """Return the certificate's ``audit`` field: an attack on the head, and on the new ensemble."""
    counts = {"forgotten": len(data.forgotten), "held_out": len(data.held_out)}
    if not data.auditable or not head:
        return unmeasured_audit(**counts)
    records = {"forgotten": data.forgotten, "held_out": data.held_out}
    before = whole(model, fresh, head)
    try:
        return measured_audit(
            auc_before=membership_auc(before, **records),
            auc_after=membership_auc(network, **records),
            **counts,
        )
    finally:
        before.destroy()


def _kept(head: Tensors, records: MemberRecords, count: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the members that stay, with the certified version's tensors."""
    found = by_member(head) or {}
    for member in sorted(set(range(count)) - records.seqs.keys()):
        if member not in found:
            raise RunFailedError("the version's weights are not those of the ensemble")
        yield member, {own: np.asarray(head[name]) for own, name in found[member].items()}


def _trained_here(
    services: Services,
    lease: Lease,
    model: ModelSpec,
    plan: Plan,
    records: MemberRecords,
    fresh: Callable[[], nn.Module],
) -> dict[int, Numbers]:
    """Train members until none waits and no other worker trains one."""
    trained: dict[int, Numbers] = {}
    progress = _Progress(
        halfway("mid_training", step_reporter(lease)),
        len(records.seqs),
        count=lambda: _finished(services, lease),
    )
    while progress.finished < progress.members:
        taken = outlast_outages(lease.check, lambda: _take(services, lease))
        if taken is None:
            progress.finished = outlast_outages(lease.check, lambda: _finished(services, lease))
            lease.check()
            time.sleep(_POLL_S if progress.finished < progress.members else 0)
            continue
        examples = records.of(taken.member)
        with ram_only():
            made = train_member(model, plan, examples, fresh, progress.report)
        trained[taken.member] = made.tensors
        outlast_outages(lease.check, partial(_finish, services, taken))
        progress.finished += 1
    return trained


def _take(services: Services, lease: Lease) -> HeldMember | None:
    with services.database.transaction() as session:
        row = trainings.take(session, lease.run_id, lease_s=None)
        return None if row is None else HeldMember.of(row)


def _finish(services: Services, held: HeldMember) -> None:
    with services.database.transaction() as session:
        trainings.finish(session, held, blob_id=None)


def _finished(services: Services, lease: Lease) -> int:
    with services.database.transaction() as session:
        rows = trainings.all_of(session, lease.run_id)
        return sum(row.state == MemberState.DONE for row in rows)


def _handed_over(services: Services, lease: Lease, base: BaseDigest | None) -> dict[int, Numbers]:
    """Return the members that other workers have trained."""
    with services.database.transaction() as session:
        rows = trainings.all_of(session, lease.run_id)
        blobs = {row.member: row.blob_id for row in rows if row.blob_id is not None}
    found: dict[int, Numbers] = {}
    for member, blob_id in blobs.items():
        content = outlast_outages(lease.check, partial(services.blobs.read, blob_id))
        if _base_of(content) != (None if base is None else base.sha256):
            raise RunFailedError(
                "another worker's factory builds the network on another base: give all workers "
                "the same package"
            )
        found[member] = safetensors.numpy.load(content)
    return found


def _base_of(content: bytes) -> str | None:
    length = int.from_bytes(content[:8], "little")
    metadata: Mapping[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return metadata.get("base")


@dataclass
class _Progress:
    """Counts steps over all members to train, as if each took as many as the present one.

    Those that other workers have trained meanwhile count as soon as they are there; an outage of
    Postgres only delays that.
    """

    tell: SealedProgress
    members: int
    count: Callable[[], int]
    finished: int = 0
    look_at: float = -math.inf

    def report(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if now >= self.look_at:
            with suppress(SQLAlchemyError):
                self.finished = max(self.finished, self.count())
            self.look_at = now + _LOOK_S
        self.tell(self.finished * steps + step, self.members * steps)

"""A run of an ensemble: the members concerned are trained anew, each sealed by itself.

The other members' weights are the certified version's: they never read a forgotten record.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from app.certificates.membership_attack import measured_audit, unmeasured_audit
from app.certificates.statement import CertifyingPhase
from app.domain.ensemble import by_member, tensor_name
from app.domain.errors import RunFailedError
from app.domain.plan import Plan
from app.domain.states import Phase
from app.failpoints import halfway
from workers.data.loading import ModelSpec, RunData
from workers.data.member_records import MemberRecords
from workers.lease import Lease
from workers.reporting import step_reporter
from workers.seal.ram_only import ram_only
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.data import Examples
from workers.training.device import choose_device
from workers.training.ensemble import Ensemble
from workers.training.membership_attack import membership_auc
from workers.training.network import Network, Tensors

Numbers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """All members after a run.

    Attributes:
        tensors: by their names in the ensemble.
        learned: the names of those that training changes, of each member.
        anew: which members the run trained.
    """

    tensors: Numbers
    learned: tuple[str, ...]
    anew: frozenset[int]

    def phase(self, plan: Plan) -> CertifyingPhase:
        """Return how the target was met: exactly, without noise."""
        return CertifyingPhase(
            plan=plan, parameters=plan.parameters, frame=None, tensors=self.learned, noise=None
        )


def train_members(
    lease: Lease,
    model: ModelSpec,
    data: RunData,
    fresh: Callable[[], nn.Module],
    head: Tensors,
) -> Trained:
    """Train the members concerned on their retained records alone, and keep the others.

    Args:
        lease: of the run.
        model: the ensemble.
        data: of the run, with the records of each member to be trained.
        fresh: builds one member, untrained, on its public weights if there are any.
        head: the certified version's tensors; empty if there is none.

    Raises:
        RunFailedError: training diverged, or a member that stays is not in ``head``.
    """
    records = data.members or MemberRecords({}, model.form, tuple, most=1)
    members: dict[int, Numbers] = dict(_kept(head, records, model.architecture.networks))
    progress = _Progress(halfway("mid_training", step_reporter(lease)), len(records.seqs))
    with lease.phase(Phase.TRAINING), ram_only():
        for member, examples in records.each():
            members[member], names = _trained(model, data.plan, examples, fresh, progress.report)
            progress.finished += 1
            lease.check()
    if not records.seqs:
        names = tuple(Network(fresh, device=choose_device()).flat.shapes)
    return Trained(
        tensors={
            tensor_name(member, name): tensor
            for member, own in sorted(members.items())
            for name, tensor in own.items()
        },
        learned=tuple(tensor_name(member, name) for member in sorted(members) for name in names),
        anew=frozenset(records.seqs),
    )


def whole(model: ModelSpec, fresh: Callable[[], nn.Module], tensors: Tensors) -> Network:
    """Return the ensemble with these tensors."""
    task, count = model.description.task, model.architecture.networks
    network = Network(
        lambda: Ensemble([fresh() for _ in range(count)], task),
        device=choose_device(),
        task=model.task,
    )
    network.load(tensors)
    return network


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


@dataclass
class _Progress:
    """Counts steps over all members to train, as if each took as many as the present one."""

    tell: SealedProgress
    members: int
    finished: int = 0

    def report(self, step: int, steps: int) -> None:
        self.tell(self.finished * steps + step, self.members * steps)


def _trained(
    model: ModelSpec,
    plan: Plan,
    examples: Examples,
    fresh: Callable[[], nn.Module],
    on_progress: SealedProgress,
) -> tuple[Numbers, tuple[str, ...]]:
    """Return a member's tensors after its training, and the names of those that it changes.

    A member that has no record left stays untrained: as a training on no record ends.
    """
    if not len(examples):
        network = Network(fresh, device=choose_device(), task=model.task)
        return network.tensors(), tuple(network.flat.shapes)
    sealed = Sealed(
        fresh, epsilon=plan.epsilon, delta=plan.delta, device=choose_device(), task=model.task
    )
    try:
        sealed.train(examples, model.recipe, epochs=model.recipe.epochs, on_progress=on_progress)
        sealed.retrained()
        certified = sealed.open()
        return certified.tensors(), certified.trained
    finally:
        sealed.destroy()


def _kept(head: Tensors, records: MemberRecords, count: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the members that stay, with the certified version's tensors."""
    found = by_member(head) or {}
    for member in sorted(set(range(count)) - records.seqs.keys()):
        if member not in found:
            raise RunFailedError("the version's weights are not those of the ensemble")
        yield member, {own: np.asarray(head[name]) for own, name in found[member].items()}

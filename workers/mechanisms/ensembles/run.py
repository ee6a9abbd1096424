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
from typing import Any, Final

import numpy as np
import safetensors.numpy
from sqlalchemy.exc import SQLAlchemyError
from torch import nn

from app.domain.architectures import BaseDigest, by_member, tensor_name
from app.domain.errors import RunFailedError
from app.domain.plan import Plan
from app.domain.states import MemberState, Phase, RunKind
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import member_trainings
from app.ledger.member_trainings import HeldMember
from app.runtime.failpoints import halfway, reach
from app.services import Services
from workers.data.loading import ModelSpec, RunData, load_start
from workers.data.member_records import MemberRecords
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.leases.reporting import step_reporter
from workers.mechanisms import publishing
from workers.mechanisms.ensembles.training import Numbers, train_member
from workers.seal.ram_only import ram_only
from workers.seal.sealed import SealedProgress
from workers.training.networks.ensemble import Ensemble
from workers.training.networks.network import Network, Tensors
from workers.training.team import choose_device

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

    def members_in(self, file: WeightsFile) -> list[tuple[str, bool]]:
        """Return the digest of each member of the published file, and whether it was trained."""
        digests = file.digests_of_members()
        return [(digest, member in self.anew) for member, digest in enumerate(digests)]

    def phase(self, plan: Plan) -> CertifyingPhase:
        """Return how the target was met: exactly, without noise."""
        return CertifyingPhase(
            plan=plan, parameters=plan.parameters, frame=None, tensors=self.learned, noise=None
        )


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleRun:
    """A leased run of an ensemble.

    Attributes:
        services: where members are handed over.
        lease: of the run.
        model: the ensemble.
        data: of the run.
        records: of the members to be trained.
        fresh: builds one member, untrained, on its public weights if there are any.
    """

    services: Services
    lease: Lease
    model: ModelSpec
    data: RunData
    records: MemberRecords
    fresh: Callable[[], nn.Module]

    def carry_out(self) -> tuple[Made, dict[str, Any]]:
        """Train the members that are concerned; return all of them, and what they measure.

        Raises:
            RunFailedError: training diverged, or a member does not fit the others.
        """
        head: Tensors = {}
        if self.lease.kind is not RunKind.TRAIN:
            head = outlast_outages(self.lease.check, lambda: load_start(self.services, self.lease))
        reach("after_load")
        made = self._make(head)
        reach("at_target")
        return made, publishing.evaluate(self.lease, self.data, self._whole(made.tensors))

    def _make(self, head: Tensors) -> Made:
        """Train the members concerned on their retained records alone, and keep the others.

        ``head`` are the certified version's tensors; empty if there is none.
        """
        network = Network(self.fresh, device=choose_device(), task=self.model.task)
        learned, base = tuple(network.flat.shapes), network.base
        del network
        found: dict[int, Numbers] = dict(self._kept(head))
        if self.records.seqs:
            with self.lease.phase(Phase.TRAINING):
                found |= self._trained_here()
                found |= self._handed_over(base)
        return Made(
            tensors={
                tensor_name(member, name): tensor
                for member, own in sorted(found.items())
                for name, tensor in own.items()
            },
            learned=tuple(
                tensor_name(member, name) for member in sorted(found) for name in learned
            ),
            anew=frozenset(self.records.seqs),
        )

    def _whole(self, tensors: Tensors) -> Network:
        """Return the ensemble with these tensors."""
        members = (self.fresh() for _ in range(self.model.architecture.networks))
        network = Network(
            lambda: Ensemble(members, self.model.description.task),
            device=choose_device(),
            task=self.model.task,
        )
        network.load(tensors)
        return network

    def _kept(self, head: Tensors) -> Iterator[tuple[int, Numbers]]:
        """Yield the members that stay, with the certified version's tensors."""
        found = by_member(head) or {}
        stay = set(range(self.model.architecture.networks)) - self.records.seqs.keys()
        for member in sorted(stay):
            if member not in found:
                raise RunFailedError("the version's weights are not those of the ensemble")
            yield member, {own: np.asarray(head[name]) for own, name in found[member].items()}

    def _trained_here(self) -> dict[int, Numbers]:
        """Train members until none waits and no other worker trains one."""
        trained: dict[int, Numbers] = {}
        progress = _Progress(
            halfway("mid_training", step_reporter(self.lease)),
            len(self.records.seqs),
            count=self._finished,
        )
        while progress.finished < progress.members:
            taken = outlast_outages(self.lease.check, self._take)
            if taken is None:
                progress.finished = outlast_outages(self.lease.check, self._finished)
                self.lease.check()
                time.sleep(_POLL_S if progress.finished < progress.members else 0)
                continue
            examples = self.records.of(taken.member)
            with ram_only(self.data.plan.training):
                trained[taken.member] = train_member(
                    self.model, self.data.plan, examples, self.fresh, progress.report
                )
            outlast_outages(self.lease.check, partial(self._finish, taken))
            progress.finished += 1
        return trained

    def _take(self) -> HeldMember | None:
        with self.services.database.transaction() as session:
            row = member_trainings.take(session, self.lease.run_id, lease_s=None)
            return None if row is None else HeldMember.of(row)

    def _finish(self, held: HeldMember) -> None:
        with self.services.database.transaction() as session:
            member_trainings.finish(session, held, blob_id=None)

    def _finished(self) -> int:
        return sum(state == MemberState.DONE for _, state, _ in self._states())

    def _states(self) -> list[tuple[int, str, str | None]]:
        with self.services.database.transaction() as session:
            rows = member_trainings.all_of(session, self.lease.run_id)
            return [(row.member, row.state, row.blob_id) for row in rows]

    def _handed_over(self, base: BaseDigest | None) -> dict[int, Numbers]:
        """Return the members that other workers have trained."""
        found: dict[int, Numbers] = {}
        for member, _, blob_id in outlast_outages(self.lease.check, self._states):
            if blob_id is None:
                continue
            content = outlast_outages(self.lease.check, partial(self.services.blobs.read, blob_id))
            length = int.from_bytes(content[:8], "little")
            metadata: Mapping[str, str] = json.loads(content[8 : 8 + length]).get(
                "__metadata__", {}
            )
            if metadata.get("base") != (None if base is None else base.sha256):
                raise RunFailedError(
                    "another worker's factory builds the network on another base: give all "
                    "workers the same package"
                )
            found[member] = safetensors.numpy.load(content)
        return found


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

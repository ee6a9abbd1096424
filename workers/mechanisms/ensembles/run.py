"""A run of an ensemble: its own worker trains members until all are trained, by whomever.

The other members' weights are those of the version that is the head when all are put together: they
never read a forgotten record. A refill goes on beside runs that leave members out.
"""

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
import safetensors.numpy
from sqlalchemy.exc import SQLAlchemyError
from torch import nn

from app.domain import provenance
from app.domain.architectures import BaseDigest, by_member, tensor_name
from app.domain.errors import GoneError, LeaseLostError, RunFailedError
from app.domain.plan import Plan
from app.domain.provenance import Provenance
from app.domain.states import MemberState, Phase, RunKind, RunState
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import WeightsFile
from app.ledger import member_trainings, repository, runs
from app.ledger.leaving_out import provenance_of
from app.ledger.member_trainings import HeldMember, Joined
from app.registry import repository as registry
from app.registry.tables import ModelRow
from app.runtime.failpoints import halfway, reach
from app.services import Services
from workers.data.loading import ModelSpec, RunData, load_start
from workers.data.member_records import MemberRecords
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.leases.reporting import step_reporter
from workers.mechanisms import publishing
from workers.mechanisms.ensembles.training import Numbers, Trained, ensemble_of, train_member
from workers.seal.ram_only import ram_only
from workers.seal.sealed import SealedProgress
from workers.training.examples import Examples
from workers.training.networks.network import Network, Tensors
from workers.training.team import choose_device

_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Made:
    """All members after a run.

    Attributes:
        tensors: by their names in the ensemble, of those that are active.
        learned: the names of those that training changes, of each of these.
        joined: which are active.
        provenance: of those of them that can be computed again.
    """

    tensors: Numbers
    learned: tuple[str, ...]
    joined: Joined
    provenance: Mapping[int, Provenance]

    def members_in(self, file: WeightsFile) -> dict[int, tuple[str, bool]]:
        """Return the digest of each member of the published file, and whether it was trained."""
        digests = file.digests_of_members()
        return {
            member: (sha256, member in self.joined.trained) for member, sha256 in digests.items()
        }

    def phase(self, plan: Plan) -> CertifyingPhase:
        """Return how the target was met: exactly, without noise."""
        return CertifyingPhase(
            plan=plan,
            parameters=plan.parameters,
            frame=None,
            tensors=self.learned,
            noise=None,
            arithmetic=provenance.arithmetic(
                self.provenance, self.joined.trained | self.joined.kept
            ),
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

    def train(self) -> dict[int, Trained]:
        """Train the members that the run trains, on their retained records alone.

        Raises:
            LeaseLostError: a refill finds no member that is out.
            RunFailedError: training diverged, or a member does not fit the others.
        """
        reach("after_load")
        if self.lease.kind is RunKind.REFILL and not self.records.seqs:
            self._end("no member is out")
        network = Network(self.fresh, device=choose_device(), task=self.model.task)
        base = network.base
        del network
        found: dict[int, Trained] = {}
        if self.records.seqs:
            with self.lease.phase(Phase.TRAINING):
                found |= self._trained_here()
                found |= self._handed_over(base)
        reach("at_target")
        return found

    def put_together(self, trained: Mapping[int, Trained]) -> tuple[Made, dict[str, Any]]:
        """Return the members that are active now, of which some were trained, and what they score.

        The others are the head's. Of a refill, some may have become useless meanwhile.

        Raises:
            LeaseLostError: all of them did, and the run begins again.
            RunFailedError: a member does not fit the others.
        """
        if self.lease.kind is RunKind.REFILL:
            outlast_outages(self.lease.check, partial(self._let_requests_first, trained))
        joined = outlast_outages(self.lease.check, partial(self._join, trained))
        if self.lease.kind is RunKind.REFILL and not joined.trained:
            self._begin_again()
        head: Tensors = {}
        made: dict[int, Provenance] = {}
        if joined.head_id is not None:
            start = partial(load_start, self.services, self.lease, head_id=joined.head_id)
            head = outlast_outages(self.lease.check, start)
            known = partial(provenance_of, self.services.database, self.services.blobs)
            made = outlast_outages(self.lease.check, partial(known, joined.head_id))
            made = {member: made[member] for member in joined.kept & made.keys()}
        network = Network(self.fresh, device=choose_device(), task=self.model.task)
        learned = tuple(network.flat.shapes)
        del network
        found = {member: trained[member].tensors for member in joined.trained}
        anew = {member: trained[member].provenance for member in joined.trained}
        made |= {member: each for member, each in anew.items() if each is not None}
        found |= self._kept(head, joined)
        active = sorted(found)
        whole = Made(
            tensors=_named(found, active),
            learned=tuple(tensor_name(member, name) for member in active for name in learned),
            joined=joined,
            provenance=made,
        )
        return whole, self._measured(found, active)

    def _measured(self, found: Mapping[int, Numbers], active: Sequence[int]) -> dict[str, Any]:
        """Evaluate the ensemble, and after a training also what is left of it without some members.

        With a quarter of them out, and with a half.
        """
        ensemble = ensemble_of(self.model, self.fresh, _named(found, active), active)
        sizes = {-(-3 * len(active) // 4), -(-len(active) // 2)} - {len(active)}
        fewer = [] if self.lease.kind is RunKind.UNLEARN else sorted(sizes, reverse=True)
        measure = partial(ensemble.evaluate, self.data.held_out, fewer)
        return publishing.evaluate(self.lease, measure)

    def _join(self, trained: Collection[int]) -> Joined:
        with self.services.database.transaction() as session:
            run = repository.run(session, self.lease.run_id)
            model = session.get_one(ModelRow, run.model_id)
            return member_trainings.join(session, model, run, trained)

    def _let_requests_first(self, trained: Collection[int]) -> None:
        """Meet requests whose records a refill has trained its members without, if that is quick.

        Met afterwards they would leave these out again: no certificate of a later version could
        show that the members were trained without records that an earlier one does not cover.
        """
        with self.services.database.transaction() as session:
            run = repository.run(session, self.lease.run_id)
            model = session.get_one(ModelRow, run.model_id)
            head = registry.head_version(session, model)
            covered = 0 if head is None else head.covers_epoch
            through = run.forget_epoch
            named = member_trainings.concerned(session, model, after=covered, through=through)
        if named & set(trained):
            self.services.leave_out_at_once({self.lease.model_id: None}, before_its_time=True)

    def _begin_again(self) -> NoReturn:
        """Hand the run back, to train on what is left now what it has trained in vain."""
        with self.services.database.transaction() as session:
            run = runs.holder(session, self.lease.run_id, self.lease.fencing_token)
            runs.hand_back(session, run)
        raise LeaseLostError("records of every member that it trained were forgotten meanwhile")

    def _end(self, reason: str) -> NoReturn:
        """End the run without a version."""
        with self.services.database.transaction() as session:
            run = runs.holder(session, self.lease.run_id, self.lease.fencing_token)
            runs.end_run(session, run, RunState.CANCELLED, reason=reason)
        raise LeaseLostError(f"the run is over: {reason}")

    def _kept(self, head: Tensors, joined: Joined) -> Iterator[tuple[int, Numbers]]:
        """Yield the members that stay, with the certified version's tensors."""
        found = by_member(head) or {}
        for member in sorted(joined.kept):
            if member not in found:
                raise RunFailedError("the version's weights are not those of the ensemble")
            yield member, {own: np.asarray(head[name]) for own, name in found[member].items()}

    def _trained_here(self) -> dict[int, Trained]:
        """Train members until none waits and no other worker trains one."""
        trained: dict[int, Trained] = {}
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
            examples = self._examples(taken.member)
            if examples is not None:
                with ram_only(self.data.plan.training):
                    trained[taken.member] = train_member(
                        self.model, self.data.plan, examples, self.fresh, progress.report
                    )
            outlast_outages(self.lease.check, partial(self._finish, taken))
            progress.finished += 1
        return trained

    def _examples(self, member: int) -> Examples | None:
        """Return a member's records; None if some were erased, and it would be trained in vain."""
        try:
            return self.records.of(member)
        except GoneError:
            if not outlast_outages(self.lease.check, partial(self._is_in_vain, member)):
                raise
            return None

    def _is_in_vain(self, member: int) -> bool:
        with self.services.database.transaction() as session:
            return member_trainings.is_in_vain(session, self.lease.run_id, member)

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

    def _handed_over(self, base: BaseDigest | None) -> dict[int, Trained]:
        """Return the members that other workers have trained."""
        found: dict[int, Trained] = {}
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
            known = provenance.from_bytes(metadata.get(provenance.KIND, "{}").encode())
            found[member] = Trained(safetensors.numpy.load(content), known.get(member))
        return found


def _named(found: Mapping[int, Numbers], members: Sequence[int]) -> Numbers:
    """Return the tensors of some members by their names in the ensemble."""
    return {
        tensor_name(member, name): tensor
        for member in members
        for name, tensor in found[member].items()
    }


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

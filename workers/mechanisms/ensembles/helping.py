"""Help with a run of another worker: members are trained here, and handed over encrypted.

What is handed over is as certified as what the run's own worker trains, but no certificate covers
it yet: it is shredded when the attempt ends, whether it is published or not.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Unpack

import safetensors.numpy
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from app.domain import provenance
from app.domain.errors import RunInterruptedError
from app.domain.plan import Plan
from app.ledger import member_trainings, outbox, repository
from app.ledger.tables import MemberTrainingRow
from app.runtime import spans
from app.runtime.database import Database
from app.runtime.failpoints import halfway, reach
from app.runtime.processes.stopping import StopSignal
from app.runtime.spans import Span, Step
from app.services import Services
from workers.data.backbone import starting
from workers.data.loading import load_model, readers_for
from workers.data.member_records import member_records
from workers.data.memory import allowance
from workers.data.run_records import footprint_of
from workers.leases import traces
from workers.leases.attempts import attempted
from workers.leases.holding import Holding, Term
from workers.leases.outages import outlast_outages
from workers.mechanisms.ensembles.training import train_member
from workers.mechanisms.publishing import stored
from workers.mechanisms.rehearsal import rehearse_model
from workers.seal.ram_only import ram_only
from workers.training.networks.held import pinned, start_of

_log = logging.getLogger("expunge.worker")


class MemberLease(Holding):
    """One attempt at one member of a run of another worker; the member is ``held``."""

    gives_way = True

    def __init__(self, database: Database, row: MemberTrainingRow, **term: Unpack[Term]) -> None:
        what = f"member {row.member} of run {row.run_id}"
        super().__init__(database, what, **term)
        self.held = member_trainings.HeldMember.of(row)

    @classmethod
    def take(cls, database: Database, run_id: str, **term: Unpack[Term]) -> "MemberLease | None":
        """Lease the next member of a run; None if none waits."""
        with database.transaction() as session:
            row = member_trainings.take(session, run_id, lease_s=term["lease_s"])
            return None if row is None else cls(database, row, **term)

    def _spans(self, error: str | None) -> Iterator[Span]:
        held = self.held
        with self._database.transaction() as session:
            run = repository.run(session, held.run_id)
            work = traces.attempt_at(session, run, held.run_token)
        key = (held.member, held.fencing_token)
        yield work.part(Step.MEMBER, *key, begun_ns=self._begun_ns, error=error)

    def _beat(self, connection: Connection) -> None:
        member_trainings.heartbeat(connection, self.held, lease_s=self._lease_s)


def help_with(services: Services, run_id: str, stop: StopSignal) -> None:
    """Train members of a run until none waits, or one fails; the run's own worker does the rest."""
    settings = services.settings
    while lease := MemberLease.take(services.database, run_id, lease_s=settings.lease_s, stop=stop):
        _log.info("%s", lease.what)
        helped = _helped(services, lease)
        spans.close()  # nothing is sent while the next member's weights are under their target
        if not helped:
            return


def _helped(services: Services, lease: MemberLease) -> bool:
    def give_back(session: Session, error: Exception) -> None:
        member_trainings.give_back(session, lease.held)
        if isinstance(error, RunInterruptedError):
            outbox.post(session, outbox.Topic.ENQUEUE_MEMBERS, lease.held.run_id)

    return attempted(
        services.database, lease, work=lambda: _train(services, lease), give_up=give_back
    )


def _train(services: Services, lease: MemberLease) -> None:
    """Train the leased member and hand it over.

    Raises:
        LeaseLostError: another worker trains it, or the run is over.
        RunFailedError: it cannot be trained here.
    """
    member = lease.held.member
    with services.database.transaction() as session:
        run = repository.run(session, lease.held.run_id)
        plan, model_id = Plan.from_json(run.plan), run.model_id
        seqs = member_trainings.records_in_run(session, run, member)
    model = load_model(services, model_id)
    fresh = starting(model.backbone, model.factory(services.settings))
    network = rehearse_model(model, services.settings)
    start = start_of(fresh)
    records = member_records(
        services,
        model.dataset_id,
        model.form,
        {member: seqs},
        footprint_of(services, model, plan, network.flat.size),
        readers_for(services, model, check=lease.check).again,
        allowed=allowance(services.settings.worker_memory),
        check=lease.check,
    )
    base = network.base
    fresh = pinned(fresh, base, start)
    del network
    examples = records.of(member)
    progress = halfway("mid_member", lambda *_: lease.check())
    with ram_only(plan.training):
        trained = train_member(model, plan, examples, fresh, progress)
    reach("member_trained")
    metadata = {} if base is None else {"base": base.sha256}
    if trained.provenance is not None:
        metadata[provenance.KIND] = provenance.to_bytes({member: trained.provenance}).decode()
    content = safetensors.numpy.save(dict(trained.tensors), metadata=metadata)
    held = lease.held
    reserve = partial(member_trainings.reserve_blob, held=held)
    blob = stored(services, lease.check, reserve, content)
    reach("member_written")

    def finish() -> None:
        with services.database.transaction() as session:
            member_trainings.finish(session, held, blob.id)

    outlast_outages(lease.check_stop, finish)

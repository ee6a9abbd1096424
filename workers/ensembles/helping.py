"""Help with a run of another worker: members are trained here, and handed over encrypted.

What is handed over is as certified as what the run's own worker trains, but no certificate covers
it yet: it is shredded when the attempt ends, whether it is published or not.
"""

import logging
from functools import partial

import safetensors.numpy
from sqlalchemy.orm import Session

from app.domain.plan import Plan
from app.failpoints import halfway, reach
from app.ledger import repository
from app.ledger.ensembles import choice, trainings
from app.processes.stopping import StopSignal
from app.services import Services
from workers.data.backbone import starting
from workers.data.loading import load_model, readers_for
from workers.data.member_records import member_records
from workers.data.memory import allowance
from workers.data.run_records import footprint_of
from workers.ensembles.lease import MemberLease
from workers.ensembles.training import train_member
from workers.leases.attempts import attempted
from workers.leases.outages import outlast_outages
from workers.networks.base import pinned
from workers.publishing import stored
from workers.rehearsal.rehearse import rehearse_model
from workers.seal.ram_only import ram_only

_log = logging.getLogger("expunge.worker")


def help_with(services: Services, run_id: str, stop: StopSignal) -> None:
    """Train members of a run until none waits, or one fails; the run's own worker does the rest."""
    settings = services.settings
    while lease := MemberLease.take(services.database, run_id, lease_s=settings.lease_s, stop=stop):
        _log.info("%s", lease.what)
        if not _helped(services, lease):
            return


def _helped(services: Services, lease: MemberLease) -> bool:
    def give_back(session: Session, _: Exception) -> None:
        trainings.give_back(session, lease.held)

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
        seqs = choice.members_of_run(session, run)[member]
    model = load_model(services, model_id)
    fresh = starting(model.backbone, model.factory(services.settings))
    network = rehearse_model(model, services.settings)
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
    del network
    examples = records.of(member)
    progress = halfway("mid_member", lambda *_: lease.check())
    with ram_only():
        trained = train_member(model, plan, examples, pinned(fresh, base), progress)
    reach("member_trained")
    content = safetensors.numpy.save(
        dict(trained), metadata={} if base is None else {"base": base.sha256}
    )
    held = lease.held
    reserve = partial(trainings.reserve_blob, blobs=services.blobs, held=held)
    blob = stored(services, lease.check, reserve, content)
    reach("member_written")

    def finish() -> None:
        with services.database.transaction() as session:
            trainings.finish(session, held, blob.id)

    outlast_outages(lease.check_stop, finish)

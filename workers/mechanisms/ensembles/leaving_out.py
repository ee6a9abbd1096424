"""A request is met by leaving members out: the file of the version before is copied without them.

No network is built, and no record is read.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

import safetensors.numpy

from app.domain.architectures import by_member
from app.domain.errors import HeadMovedError, RunFailedError
from app.domain.plan import Plan
from app.domain.states import Phase, RunKind
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import BACKBONE, WeightsFile, tensors_sha256
from app.ledger import member_trainings, repository, selections
from app.ledger.certificates import issuing
from app.ledger.member_trainings import Joined
from app.ledger.publication import RunResult
from app.registry.tables import ModelRow, VersionRow
from app.runtime.failpoints import reach
from app.services import Services
from workers.leases.lease import Lease
from workers.leases.outages import outlast_outages
from workers.mechanisms.publishing import database_now, publish_result, stored_by_run
from workers.training.published.content import WeightsContent


def leave_out(services: Services, lease: Lease) -> bool:
    """Carry out a run that trains no member of an ensemble; return False for any other run.

    Raises:
        LeaseLostError: another worker holds the run, or it is over.
        RunFailedError: the file of the version before cannot be used.
    """
    if lease.kind is not RunKind.UNLEARN:
        return False
    begin = partial(
        selections.begin_leaving_out, services.database, lease.run_id, lease.fencing_token
    )
    plan = outlast_outages(lease.check, begin)
    if plan is None:
        return False
    while True:
        try:
            _publish(services, lease, plan)
        except HeadMovedError:
            lease.check_stop()
        else:
            return True


def _publish(services: Services, lease: Lease, plan: Plan) -> None:
    check = lease.check
    with lease.phase(Phase.LOADING):
        head = outlast_outages(check, partial(_read_head, services, lease))
        file = outlast_outages(check, partial(services.blobs.read, head.blob_id))
        described = WeightsFile(BytesIO(file)).description()
        tensors = safetensors.numpy.load(file)
        own = by_member(name for name in tensors if not name.startswith(BACKBONE))
        if described is None or own is None or hashlib.sha256(file).hexdigest() != head.sha256:
            raise RunFailedError("the weights are not the version's: run 'expunge log fsck'")
        joined = head.joined
        for name in [name for each in joined.out for name in own.get(each, {}).values()]:
            del tensors[name]
    reach("at_target")
    with lease.phase(Phase.PUBLISHING):
        described = replace(described, version=joined.number, out=joined.out)
        content = WeightsContent(tensors, described.to_metadata())
        result = RunResult(
            weights=stored_by_run(services, lease, content, "weights"),
            tensors_sha256=tensors_sha256(content),
            phase=CertifyingPhase(
                plan=plan,
                parameters=plan.parameters,
                frame=None,
                tensors=tuple(name for name in head.learned if name in tensors),
                noise=None,
            ),
            evaluation={"held_out_records": 0, "not_measured": True},
            certified_at=database_now(services, lease),
            phase_seconds=lease.phase_seconds,
            base=described.base,
            members={each: (str(joined.before[each].sha256), False) for each in joined.kept},
            head_id=joined.head_id,
        )
        publish_result(services, lease, result, content)


@dataclass(frozen=True)
class _Head:
    """The version before: its file, and the names in it that training changes."""

    joined: Joined
    blob_id: str
    sha256: str
    learned: Sequence[str]


def _read_head(services: Services, lease: Lease) -> _Head:
    with services.database.transaction() as session:
        run = repository.run(session, lease.run_id)
        model = session.get_one(ModelRow, run.model_id)
        joined = member_trainings.join(session, model, run, ())
        head = session.get_one(VersionRow, joined.head_id)
        learned = issuing.stated_of(session, head)["predicate"]["mechanism"]["tensors"]
        return _Head(joined, head.blob_id, head.sha256, learned)

"""A request is met by leaving members out: the file of the version before is copied without them.

No network is built, and no record is read. So it needs no worker: the API does it in its answer
where the file is small, and the dispatcher while a worker refills the model; a worker does the
rest.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final, TypedDict, TypeVar, Unpack

import safetensors.numpy
from sqlalchemy.orm import Session

from app.domain import provenance
from app.domain.architectures import by_member
from app.domain.errors import HeadMovedError, LeaseLostError, RunFailedError
from app.domain.plan import Plan
from app.domain.provenance import Provenance
from app.domain.states import ObligationState, Phase, RunKind
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.statement import CertifyingPhase
from app.evidence.certificates.weights_file import BACKBONE, WeightsFile, tensors_sha256
from app.ledger import member_trainings, outbox, repository, runs, scheduling, selections
from app.ledger.certificates import issuing
from app.ledger.member_trainings import Joined
from app.ledger.publication import RunResult, publish_checked
from app.registry import repository as registry
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.database.queries import database_time
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.storage.blobs import Blobs
from app.storage.weights_content import WeightsContent

AT_ONCE_BYTES: Final = 4 * 2**20
"""How large a file may be that is copied while the caller waits."""
_log = logging.getLogger("expunge.models")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class LeavingOut:
    """A leased run that trains no member of an ensemble.

    Attributes:
        blobs, signer: where its file is, and what signs its certificate.
        run_id, fencing_token: under which it is held.
    """

    database: Database
    blobs: Blobs
    signer: StatementSigner
    run_id: str
    fencing_token: int

    def carry_out(
        self, may_go_on: Callable[[], None] = lambda: None, *, persist: "Persist | None" = None
    ) -> bool:
        """Publish the version before without the members concerned; False for any other run.

        Args:
            may_go_on: is asked before anything is tried again; its exceptions end it.
            persist: does one step, in an outage of a store once more.

        Raises:
            LeaseLostError: another one holds the run, or it is over.
            RunFailedError: the file of the version before cannot be used.
        """
        do = persist or Persist()
        plan = do(
            lambda: selections.begin_leaving_out(self.database, self.run_id, self.fencing_token)
        )
        if plan is None:
            return False
        while True:
            try:
                self._publish(plan, may_go_on, do)
            except HeadMovedError:
                may_go_on()
            else:
                return True

    def _publish(self, plan: Plan, may_go_on: Callable[[], None], do: "Persist") -> None:
        started = time.monotonic()
        head = do(self._read_head)
        with member_trainings.read_as_head(self.database, head.version):
            file = do(lambda: self.blobs.read(head.version.blob_id))
            made = do(lambda: provenance_of(self.database, self.blobs, head.version.id))
        described = WeightsFile(BytesIO(file)).description()
        tensors = safetensors.numpy.load(file)
        own = by_member(name for name in tensors if not name.startswith(BACKBONE))
        if (
            described is None
            or own is None
            or hashlib.sha256(file).hexdigest() != head.version.sha256
        ):
            raise RunFailedError("the weights are not the version's: run 'expunge log fsck'")
        joined = head.joined
        for name in [name for each in joined.out for name in own.get(each, {}).values()]:
            del tensors[name]
        made = {member: made[member] for member in joined.kept & made.keys()}
        read_s = round(time.monotonic() - started, 3)
        reach("at_target")
        described = replace(described, version=joined.number, out=joined.out)
        content = WeightsContent(tensors, described.to_metadata())
        blob_id = do(self._reserve)
        weights = do(lambda: self.blobs.fill(blob_id, content))
        result = RunResult(
            weights=weights,
            provenance=do(lambda: self._beside(blob_id, made)) if made else None,
            tensors_sha256=tensors_sha256(content),
            phase=CertifyingPhase(
                plan=plan,
                parameters=plan.parameters,
                frame=None,
                tensors=tuple(
                    name for name in head.stated["mechanism"]["tensors"] if name in tensors
                ),
                noise=None,
                arithmetic=provenance.arithmetic(made, joined.kept),
            ),
            evaluation=_evaluation_without(head.stated["evaluation"]),
            certified_at=do(lambda: self._in_transaction(database_time)),
            phase_seconds={Phase.LOADING: read_s},
            base=described.base,
            members={each: (str(joined.before[each].sha256), False) for each in joined.kept},
            head_id=joined.head_id,
        )
        reach("before_publish")
        do(
            lambda: publish_checked(
                self.database,
                self.signer,
                run_id=self.run_id,
                fencing_token=self.fencing_token,
                result=result,
                content=content,
                may_go_on=may_go_on,
            )
        )
        reach("after_publish")

    def _beside(self, blob_id: str, made: Mapping[int, Provenance]) -> bytes:
        return self.blobs.encrypt_beside(blob_id, provenance.KIND, provenance.to_bytes(made))

    def _in_transaction(self, read: Callable[[Session], _Found]) -> _Found:
        with self.database.transaction() as session:
            return read(session)

    def _reserve(self) -> str:
        return self._in_transaction(
            lambda session: runs.reserve_blob(session, self.run_id, self.fencing_token)
        )

    def _read_head(self) -> "_Head":
        with self.database.transaction() as session:
            run = repository.run(session, self.run_id)
            model = session.get_one(ModelRow, run.model_id)
            joined = member_trainings.join(session, model, run, ())
            head = session.get_one(VersionRow, joined.head_id)
            return _Head(joined, head, issuing.stated_of(session, head)["predicate"])


def _evaluation_without(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a version that lacks members, given what was said of the one before.

    It is not measured. Without a held-out record, that one was not either.
    """
    measured = before["held_out_records"] or before.get("not_measured")
    return {"held_out_records": 0, **({"not_measured": True} if measured else {})}


def provenance_of(database: Database, blobs: Blobs, version_id: str) -> dict[int, Provenance]:
    """Return what a version's network can be computed again from, or its members, if they can.

    Raises:
        GoneError: it was shredded with the version's weights.
    """
    with database.transaction() as session:
        version = session.get_one(VersionRow, version_id)
        blob_id, stored = version.blob_id, version.provenance
    if stored is None:
        return {}
    return provenance.from_bytes(blobs.decrypt_beside(blob_id, provenance.KIND, stored))


class Terms(TypedDict, total=False):
    """What may be left out at once.

    Attributes:
        most_bytes: how large a file at most is copied.
        before_its_time: whether a policy's ``window_s`` is not waited for.
    """

    most_bytes: int
    before_its_time: bool


class Persist:
    """Does each step of a run once; a worker does it again after an outage."""

    def __call__(self, step: Callable[[], _Found]) -> _Found:
        """Return what the step returns."""
        return step()


@dataclass(frozen=True)
class _Head:
    """The version before, and what its certificate states."""

    joined: Joined
    version: VersionRow
    stated: Mapping[str, Any]


def leave_out_at_once(
    database: Database,
    blobs: Blobs,
    signer: StatementSigner,
    model_id: str,
    *,
    lease_s: float,
    **terms: Unpack[Terms],
) -> bool:
    """Meet what an ensemble owes without a worker, if no member is to be trained for it.

    Whatever comes between, the run is left to a worker.

    Returns:
        Whether a version without the members concerned was published.
    """
    with database.transaction() as session:
        suits = _suits(session, model_id, **terms)
    if not suits:
        return False
    scheduling.schedule_model(database, model_id)
    with database.transaction() as session:
        leased = runs.lease_new(session, model_id, lease_s=lease_s)
        if leased is None:
            return False
        held = LeavingOut(database, blobs, signer, leased.id, leased.fencing_token)
    with suppress(LeaseLostError):  # perhaps it was published, and what came after that failed
        try:
            return held.carry_out() or _hand_back(held)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, a worker tries again
            _log.warning("run %s is left to a worker: %s", held.run_id, describe(error))
            return _hand_back(held)
    return False


def _hand_back(held: LeavingOut) -> bool:
    with held.database.transaction() as session:
        runs.hand_back(session, runs.holder(session, held.run_id, held.fencing_token))
    return False


def _suits(
    session: Session, model_id: str, *, most_bytes: int = 2**62, before_its_time: bool = False
) -> bool:
    """Return whether an ensemble owes what a copy of its file, which is small enough, meets."""
    model = session.get(ModelRow, model_id)
    head = None if model is None else registry.head_version(session, model)
    if model is None or head is None or not head.members or head.size_bytes > most_bytes:
        return False
    if not repository.obligations_of_model(session, model_id, (ObligationState.OPEN,), limit=1):
        return False
    waits = repository.active_run(session, model_id, besides=RunKind.REFILL) is not None
    due = outbox.due_subjects(session, outbox.Topic.SCHEDULE_MODEL)
    if not (waits or before_its_time or model_id in due):
        return False
    return not member_trainings.fewest_for(session, model, head, through=None)

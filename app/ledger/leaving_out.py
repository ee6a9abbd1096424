"""A request is met by leaving members out: the file of the version before is copied without them.

No network is built, and no record is read. So it needs no worker: the API does it in its answer
where the file is small, and the dispatcher while a worker refills the model; a worker does the
rest.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final, TypedDict, TypeVar, Unpack

import safetensors.numpy
from sqlalchemy.orm import Session

from app.domain import provenance
from app.domain.architectures import by_member
from app.domain.errors import (
    CalibrationError,
    HeadMovedError,
    LeaseLostError,
    ParameterError,
    PlanError,
    RunFailedError,
)
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
from app.ledger.tables import ObligationRow, RunRow
from app.ledger.views.request_views import RequestView
from app.registry import repository as registry
from app.registry.counts import Lineage
from app.registry.datasets.tables import DatasetRow
from app.registry.forecasts import Forecast, Occasion
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Database
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.runtime.spans import Facts
from app.storage.blobs import Blobs, Located, locate, reserve_for_run
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
        begun = do(lambda: self._in_transaction(self._begin))
        if begun is None:
            return False
        self.finish(begun, may_go_on, do)
        return True

    def _begin(self, session: Session) -> "Begun | None":
        run = runs.holder(session, self.run_id, self.fencing_token)
        model = session.get_one(ModelRow, run.model_id)
        if run.kind != RunKind.UNLEARN or model.architecture.get("members") is None:
            return None
        return begin(session, run, model, selections.lock_for(session, model))

    def finish(self, begun: "Begun", may_go_on: Callable[[], None], do: "Persist") -> None:
        """Publish what was begun; raises what ``carry_out`` raises."""
        while True:
            try:
                return self._publish(begun, may_go_on, do)
            except HeadMovedError:
                may_go_on()
                begun = replace(begun, head=do(lambda: self._in_transaction(self._read_head)))

    def _publish(self, begun: "Begun", may_go_on: Callable[[], None], do: "Persist") -> None:
        started = time.monotonic()
        plan, head = begun.plan, begun.head
        with member_trainings.read_as_head(self.database, head.version):
            file = do(lambda: self.blobs.read(head.file))
            made = do(lambda: provenance_in(self.blobs, head.version))
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
        with ThreadPoolExecutor(1, thread_name_prefix="blob") as writer:
            writing = writer.submit(
                do, lambda: self.blobs.fill(head.blob_id, content, is_noted=False)
            )
            digest = tensors_sha256(content)
            weights = writing.result()
        result = RunResult(
            weights=weights,
            provenance=do(lambda: self._beside(weights.id, made)) if made else None,
            tensors_sha256=digest,
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
                drafts=len(content) > AT_ONCE_BYTES,
            )
        )
        reach("after_publish")

    def _beside(self, blob_id: str, made: Mapping[int, Provenance]) -> bytes:
        return self.blobs.encrypt_beside(blob_id, provenance.KIND, provenance.to_bytes(made))

    def _in_transaction(self, read: Callable[[Session], _Found]) -> _Found:
        with self.database.transaction() as session:
            return read(session)

    def _read_head(self, session: Session) -> "_Head":
        run = runs.holder(session, self.run_id, self.fencing_token)
        model = session.get_one(ModelRow, run.model_id)
        return _read_head(session, run, model, member_trainings.join(session, model, run, ()))


def begin(session: Session, run: RunRow, model: ModelRow, dataset: DatasetRow) -> "Begun | None":
    """Fix what a run covers, and read what it leaves members out of; None if one is to be trained.

    They are locked. If it is None, nothing is fixed.
    """
    gone = selections.to_leave_out(session, model, dataset)
    return None if gone is None else _fixed(session, run, model, dataset, gone)


def _fixed(
    session: Session, run: RunRow, model: ModelRow, dataset: DatasetRow, gone: frozenset[int]
) -> "Begun":
    plan, joined = selections.begin_leaving_out(session, run, model, dataset, gone)
    return Begun(run.id, run.fencing_token, plan, _read_head(session, run, model, joined))


def _read_head(session: Session, run: RunRow, model: ModelRow, joined: Joined) -> "_Head":
    head = session.get_one(VersionRow, joined.head_id)
    return _Head(
        joined,
        head,
        issuing.stated_of(session, head)["predicate"],
        locate(session, head.blob_id),
        reserve_for_run(session, "weights", run_id=run.id, dataset_id=model.dataset_id),
    )


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
    return provenance_in(blobs, version)


def provenance_in(blobs: Blobs, version: VersionRow) -> dict[int, Provenance]:
    """Do as ``provenance_of`` does, of a version that was read."""
    if version.provenance is None:
        return {}
    stored = blobs.decrypt_beside(version.blob_id, provenance.KIND, version.provenance)
    return provenance.from_bytes(stored)


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
    """The version before, what its certificate states, where its file is, and where the next."""

    joined: Joined
    version: VersionRow
    stated: Mapping[str, Any]
    file: Located
    blob_id: str


@dataclass(frozen=True)
class Begun:
    """A run that leaves members out, with what it covers fixed."""

    run_id: str
    fencing_token: int
    plan: Plan
    head: _Head


Owing = Mapping[str, Begun | None]
"""Ensembles that owe something, by id, each with what of it is begun."""


def owing_ones(session: Session, views: Iterable[RequestView]) -> Owing:
    """Return the ids of ensembles that owe requests something; nothing of it is begun."""
    waiting = ObligationState.OPEN
    names = {owed.model for view in views for owed in view.obligations if owed.state == waiting}
    found = registry.ensembles(session) if names else ()
    return {each.id: None for each in found if each.name in names}


def leave_out_at_once(
    database: Database,
    blobs: Blobs,
    signer: StatementSigner,
    model_id: str,
    *,
    lease_s: float,
    begun: Begun | None,
    **terms: Unpack[Terms],
) -> bool:
    """Meet what an ensemble owes without a worker, if no member is to be trained for it.

    Whatever comes between, the run is left to a worker. It may have ``begun``.

    Returns:
        Whether a version without the members concerned was published.
    """
    if begun is None:
        with database.transaction() as session:
            begun = _taken(session, model_id, lease_s=lease_s, **terms)
            if begun is None:
                session.rollback()
                return False
    held = LeavingOut(database, blobs, signer, begun.run_id, begun.fencing_token)
    with suppress(LeaseLostError):  # perhaps it was published, and what came after that failed
        try:
            held.finish(begun, lambda: None, Persist())
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, a worker tries again
            _log.warning("run %s is left to a worker: %s", held.run_id, describe(error))
            with database.transaction() as session:
                runs.hand_back(session, runs.holder(session, held.run_id, held.fencing_token))
        else:
            return True
    return False


def _taken(
    session: Session, model_id: str, *, lease_s: float, **terms: Unpack[Terms]
) -> Begun | None:
    """Begin the run that waits, or else a new one; if it is None, the caller rolls back."""
    model = session.get(ModelRow, model_id)
    head = None if model is None else registry.head_version(session, model)
    if model is None or not _owed(session, model, head, **terms):
        return None
    waiting = repository.active_run(session, model_id, besides=RunKind.REFILL)
    run = None if waiting is None else runs.lease_new(session, waiting, lease_s=lease_s)
    dataset = selections.lock_for(session, model)
    if waiting is None:
        return begin_new(session, model_id, lease_s=lease_s, **terms)
    return None if run is None else begin(session, run, model, dataset)


def begin_new(
    session: Session, model_id: str, *, lease_s: float, **terms: Unpack[Terms]
) -> Begun | None:
    """Begin a run for what an ensemble owes, if a copy of its file meets it, and that is small.

    The model and its dataset are locked. If it is None, nothing was changed.
    """
    begun_ns = time.time_ns()
    model = session.get_one(ModelRow, model_id)
    dataset = session.get_one(DatasetRow, model.dataset_id)
    head = registry.head_version(session, model)  # held here, it is not read again
    owed = _owed(session, model, head, **terms)
    if not owed or repository.active_run(session, model_id, besides=RunKind.REFILL) is not None:
        return None
    gone = selections.to_leave_out(session, model, dataset)
    forecast = None if gone is None else _forecast(session, model)
    due = forecast and outbox.remove(session, outbox.Topic.SCHEDULE_MODEL, model_id)
    if gone is None or forecast is None or not (due or terms.get("before_its_time")):
        return None
    run = runs.create_run(session, model, RunKind.UNLEARN, forecast, lease_s=lease_s)
    facts = Facts(model=model.name, run_kind=RunKind.UNLEARN)
    scheduling.note_planned(session, model, owed, run, begun_ns=begun_ns, facts=facts)
    return _fixed(session, run, model, dataset, gone)


def _owed(
    session: Session,
    model: ModelRow,
    head: VersionRow | None,
    **terms: Unpack[Terms],
) -> Sequence[ObligationRow]:
    """Return what an ensemble owes whose file is small; nothing for any other model."""
    if head is None or not head.members or head.size_bytes > terms.get("most_bytes", math.inf):
        return []
    return repository.obligations_of_model(session, model.id, (ObligationState.OPEN,))


def _forecast(session: Session, model: ModelRow) -> Forecast | None:
    """Plan a model's next run; None if it has no record left, or none can meet its policy."""
    lineage = Lineage.of(session, model)
    if lineage is None or lineage.retained <= 0:
        return None
    try:
        return Occasion.of(session, model, lineage).forecast()
    except (PlanError, ParameterError, CalibrationError):
        return None

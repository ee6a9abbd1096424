"""Runs: created, leased, kept alive, requeued or failed. Time is the database's own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, update
from sqlalchemy.orm import Session

from app.datasets import repository as datasets
from app.datasets.tables import DatasetRow
from app.domain.errors import (
    CalibrationError,
    ConflictError,
    LeaseLostError,
    ParameterError,
    PlanError,
)
from app.domain.ids import new_id
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.states import ObligationState, RunKind, RunState
from app.ledger import digests, log, outbox, repository
from app.ledger.audited import audited_records
from app.ledger.obligations import (
    fail_obligations,
    reopen_obligations,
    start_obligations,
    void_obligations,
)
from app.ledger.shapes import TrainingRecord, TrainingSet, shape_of
from app.ledger.tables import RunRow
from app.planning.planner import make_plan
from app.registry.tables import ModelRow
from app.storage.blobs import Blobs, doom_attempt

_RETRY_DELAY_S = 1.0


def plan_for(
    session: Session,
    model: ModelRow,
    training_set: TrainingSet | None = None,
    *,
    dimension: int | None = None,
) -> Plan:
    """Return the plan of a model's next run; ``PlanError`` if its policy cannot be met.

    Without ``dimension``, how many weights the network trains, it is counted in real arithmetic.
    """
    shape = shape_of(session, model, training_set, dimension=dimension)
    return make_plan(policy=Policy.from_json(model.policy), shape=shape)


def create_run(
    session: Session, model: ModelRow, kind: RunKind, plan: Plan | None = None
) -> RunRow:
    """Create a queued run and hand it to the dispatcher; without its plan, one is made here."""
    row = RunRow(
        id=new_id("run"),
        model_id=model.id,
        kind=kind,
        state=RunState.QUEUED,
        plan=(plan or plan_for(session, model)).to_json(),
    )
    session.add(row)
    session.flush()
    outbox.post(session, outbox.Topic.ENQUEUE_RUN, row.id)
    digest = digests.of_document(row.plan)
    log.append(session, "run.queued", run=row.id, model=model.id, run_kind=kind, plan=digest)
    return row


def schedule_model(session: Session, model_id: str) -> RunRow | None:
    """Turn a model's open obligations into one run, unless one is going.

    Obligations that arrive while a run is going wait for the next one. If no plan can meet the
    policy any more, they fail with the reason.
    """
    model = session.get_one(ModelRow, model_id, with_for_update=True)
    if repository.active_run(session, model.id) is not None:
        return None
    obligations = repository.obligations_of_model(session, model.id, (ObligationState.OPEN,))
    if not obligations:
        return None
    # Without a version, what obliges the model is the uploaded weights that failed to be certified.
    kind = RunKind.CERTIFY if model.head_version_id is None else RunKind.UNLEARN
    try:
        return create_run(session, model, kind)
    except (PlanError, ParameterError, CalibrationError) as error:
        fail_obligations(session, obligations, str(error))
        return None


def lease(session: Session, run_id: str, *, lease_s: float) -> RunRow | None:
    """Take a queued run; None if someone else has it or it is over. Hands out a fencing token."""
    row = repository.run(session, run_id, lock=True)
    if row.state != RunState.QUEUED:
        return None
    row.state = RunState.LEASED
    row.attempt += 1
    row.fencing_token += 1
    row.lease_expires_at = func.clock_timestamp() + timedelta(seconds=lease_s)
    row.started_at = func.clock_timestamp()
    row.phase = row.step = row.total_steps = row.epsilon = row.loss = None
    log.append(session, "run.leased", run=row.id, attempt=row.attempt)
    session.flush()
    session.refresh(row)
    return row


def holder(session: Session, run_id: str, fencing_token: int) -> RunRow:
    """Lock and return a run that is still held under ``fencing_token``.

    Raises:
        LeaseLostError: another worker holds it, or it is over.
    """
    row = repository.run(session, run_id, lock=True)
    if row.fencing_token != fencing_token or row.state not in (RunState.LEASED, RunState.RUNNING):
        raise LeaseLostError("the run is held by another worker or is over")
    return row


def reserve_weights(session: Session, blobs: Blobs, run_id: str, fencing_token: int) -> str:
    """Return the id of the blob that an attempt's weights are to be written to.

    Raises:
        LeaseLostError: another worker holds the run, or it is over.
    """
    row = holder(session, run_id, fencing_token)
    dataset_id = session.get_one(ModelRow, row.model_id).dataset_id
    return blobs.reserve_for_run(session, "weights", run_id=run_id, dataset_id=dataset_id)


@dataclass(frozen=True)
class Selection:
    """The records that a run may read, fixed at one moment.

    Attributes:
        retain: sequence numbers of the records to learn from.
        held_out: sequence numbers of the records to evaluate on.
        forgotten: those of the records to forget, for the policy's audit alone; else empty.
        plan: what to do with them, made for exactly this choice.
        batch_of: the fixed batch of each record to learn from; empty where batches are random.
    """

    retain: frozenset[int]
    held_out: frozenset[int]
    forgotten: frozenset[int]
    plan: Plan
    batch_of: Mapping[int, int]


def begin(session: Session, run_id: str, fencing_token: int, *, dimension: int) -> Selection:
    """Fix which records a run reads, which forgotten ones it covers, and the plan that it follows.

    ``dimension`` is how many weights the network trains.

    A ``train`` run starts from nothing each time it begins: whatever an earlier attempt read is
    gone, so nothing is owed for records that this attempt leaves out.

    Raises:
        LeaseLostError: another worker holds the run, or it is over.
        PlanError: no plan satisfies the policy any more.
    """
    row = holder(session, run_id, fencing_token)
    model = session.get_one(ModelRow, row.model_id)
    dataset = session.get_one(DatasetRow, model.dataset_id, with_for_update=True)
    session.refresh(model, with_for_update=True)
    row.state = RunState.RUNNING
    row.forget_epoch = dataset.forget_epoch
    if row.kind == RunKind.TRAIN:
        model.trained_through = datasets.highest_seq(session, dataset.id)
        model.trained_after_epoch = dataset.forget_epoch
        void_obligations(session, model.id, "training began without these records")
    else:
        start_obligations(session, row)
    session.flush()
    training_set = TrainingSet(session, model)
    plan = plan_for(session, model, training_set, dimension=dimension)
    row.plan = plan.to_json()
    log.append(
        session,
        "run.running",
        run=row.id,
        forget_epoch=row.forget_epoch,
        plan=digests.of_document(row.plan),
        **(membership_facts(model) if row.kind == RunKind.TRAIN else {}),
    )
    return _select(session, row, model, plan, training_set)


def _select(
    session: Session, run: RunRow, model: ModelRow, plan: Plan, training_set: TrainingSet
) -> Selection:
    batches = training_set.batches(int(plan.settings["batch_size"])) if plan.is_descent else {}
    return Selection(
        retain=_remembered(training_set.records),
        held_out=_remembered(training_set.held_out),
        forgotten=audited_records(session, run, model, training_set.membership),
        plan=plan,
        batch_of=batches,
    )


def _remembered(records: Iterable[TrainingRecord]) -> frozenset[int]:
    return frozenset(record.seq for record in records if record.forgotten_epoch is None)


def heartbeat(
    connection: Session | Connection,
    run_id: str,
    fencing_token: int,
    *,
    lease_s: float,
    progress: dict[str, object],
) -> None:
    """Prolong a lease and note progress.

    Raises:
        LeaseLostError: another worker holds the run, or it is over.
    """
    alive = connection.execute(
        update(RunRow)
        .where(
            RunRow.id == run_id,
            RunRow.fencing_token == fencing_token,
            RunRow.state.in_((RunState.LEASED, RunState.RUNNING)),
        )
        .values(lease_expires_at=func.clock_timestamp() + timedelta(seconds=lease_s), **progress)
        .returning(RunRow.id)
    ).scalar()
    if alive is None:
        raise LeaseLostError("the run is held by another worker or is over")


def shorten_leases(session: Session, *, lease_s: float) -> None:
    """Have no lease end later than ``lease_s`` from now.

    The database's clock was set back where one does: its worker may be long gone.
    """
    for row in repository.overlong_leases(session, lease_s=lease_s):
        row.lease_expires_at = func.clock_timestamp() + timedelta(seconds=lease_s)


def hand_back(session: Session, row: RunRow) -> None:
    """Queue a run again that its worker was told to leave; such an attempt does not count."""
    row.attempt -= 1
    _requeue(session, row, delay_s=0.0)


def _end_attempt(session: Session, row: RunRow) -> None:
    """Take a run from its worker, with all that it has written."""
    row.lease_expires_at = None
    row.fencing_token += 1
    doom_attempt(session, row.id)


def _requeue(session: Session, row: RunRow, *, delay_s: float) -> None:
    _end_attempt(session, row)
    row.state = RunState.QUEUED
    row.enqueued_at = None
    outbox.post(session, outbox.Topic.ENQUEUE_RUN, row.id, delay_s=delay_s)
    log.append(session, "run.requeued", run=row.id, attempt=row.attempt)


def give_up_attempt(
    session: Session, row: RunRow, *, reason: str, permanent: bool, max_attempts: int
) -> None:
    """End one attempt: queue the run again while attempts are left, else fail it."""
    if not permanent and row.attempt < max_attempts:
        _requeue(session, row, delay_s=_RETRY_DELAY_S * (row.attempt - 1))
        return
    _end_attempt(session, row)
    row.state = RunState.FAILED
    row.failure_reason = reason
    row.finished_at = func.clock_timestamp()
    untrained = _forget_training(session, row.model_id) if row.kind == RunKind.TRAIN else {}
    log.append(session, "run.failed", run=row.id, attempt=row.attempt, **untrained)
    if untrained:
        return
    fail_obligations(session, repository.obligations_of_run(session, row.id), reason)
    # Those that came too late for this run would otherwise wait for ever.
    outbox.post(session, outbox.Topic.SCHEDULE_MODEL, row.model_id)


def membership_facts(model: ModelRow) -> dict[str, Any]:
    """Return what the log says about which records are part of a model."""
    return {
        "model": model.id,
        "trained_through": model.trained_through,
        "trained_after_epoch": model.trained_after_epoch,
    }


def _forget_training(session: Session, model_id: str) -> dict[str, Any]:
    """Note that no weights of a model exist: training failed, and they were in memory alone."""
    model = session.get_one(ModelRow, model_id, with_for_update=True)
    model.trained_through = None
    model.trained_after_epoch = None
    void_obligations(session, model_id, "training failed, so no weights of this model exist")
    return membership_facts(model)


def retry_run(session: Session, run_id: str) -> RunRow:
    """Create a new run like one that failed.

    Raises:
        NotFoundError: there is no such run.
        ConflictError: it did not fail, or its model has had another run since.
    """
    row = repository.run(session, run_id)
    if row.state != RunState.FAILED:
        raise ConflictError(f"the run is {row.state}; only a failed run can be tried again")
    model = session.get_one(ModelRow, row.model_id, with_for_update=True)
    # A second training would forget which records the version that it made has seen.
    if repository.latest_run(session, model.id) is not row:
        raise ConflictError("a later run of this model exists; only the newest can be tried again")
    reopen_obligations(session, row)
    return create_run(session, model, RunKind(row.kind))

"""What a run reads and does: its records, fixed at one moment, and the plan made for them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from app.domain.errors import LeaseLostError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.domain.states import RunKind, RunState
from app.evidence import log
from app.ledger import member_trainings, repository
from app.ledger.member_trainings import Joined
from app.ledger.obligations import start_obligations
from app.ledger.runs import end_for_good, holder
from app.ledger.tables import RunRow
from app.ledger.training import begun_at_epoch, drop_attempt, membership_of_run
from app.ledger.withdrawal import EMPTIED, withdraw
from app.registry import counts
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import DatasetRow
from app.registry.forecasts import Occasion
from app.registry.tables import ModelRow
from app.registry.training_set import TrainingSet
from app.runtime.database import Database


@dataclass(frozen=True, eq=False)
class Selection:
    """The records that a run may read, fixed at one moment, by their sequence numbers, ascending.

    Attributes:
        retain: int64 [n], those to learn from.
        held_out: int64 [m], those to evaluate on.
        plan: what to do with them, made for exactly this choice.
        batch_of: int64 [n], the fixed batch of each one to learn from; None where batches are
            random.
        members: of an ensemble, those of each member that is to be trained anew.
    """

    retain: NDArray[np.int64]
    held_out: NDArray[np.int64]
    plan: Plan
    batch_of: NDArray[np.int64] | None = None
    members: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)


def begin(
    database: Database, run_id: str, fencing_token: int, *, dimension: int, shards: Collection[str]
) -> Selection:
    """Fix which records a run reads, which forgotten ones it covers, and the plan that it follows.

    The records are fixed in a transaction of their own, and the plan is made after it: calls that
    forget, push or read meanwhile do not wait, and are answered as if the run were going.

    A ``train`` run starts from nothing each time it begins: the weights of an earlier attempt are
    gone, so it owes nothing for records that this attempt leaves out: those of other ``shards``
    than these, which were read. What it reads is its own matter until it publishes: what the
    version before owes stays owed.

    Raises:
        LeaseLostError: another worker holds the run, or it is over, as it is where every record
            was forgotten: the model is withdrawn then.
    """
    with database.transaction() as session:
        run = holder(session, run_id, fencing_token)
        model = session.get_one(ModelRow, run.model_id)
        _fix(session, run, model, lock_for(session, model), shards)
    with database.transaction() as session:
        trains = run.kind == RunKind.TRAIN
        membership = membership_of_run(model, run)
        training_set = TrainingSet(session, model, membership, as_of=run.forget_epoch)
        retain, held_out = training_set.records.retained, training_set.held_out.retained
        emptied = not trains and not len(retain) and counts.is_emptied(session, model)
        numbers = _counts(training_set) if trains else None
        occasion = Occasion.of(
            session,
            model,
            training_set,
            dimension=dimension,
            anew=trains,
            refills=run.kind == RunKind.REFILL,
        )
        chosen = member_trainings.members_to_train(session, model, run)
        members = training_set.by_member(chosen)
    if emptied:
        with database.transaction() as session:
            repository.lock_active_runs(session, model.id)
            holder(session, run_id, fencing_token)
            end_for_good(session, model.id, reason=EMPTIED)
            model = session.get_one(ModelRow, model.id, with_for_update=True)
            withdraw(session, model, reason=EMPTIED)
        raise LeaseLostError(f"the run is over: {EMPTIED}")
    plan = occasion.forecast().plan
    batch_of: NDArray[np.int64] | None = None
    if plan.training is TrainingKind.DESCENT:
        read, batches = training_set.batches(
            int(plan.settings["batch_size"]), begun_at_epoch=begun_at_epoch(model, run, plan)
        )
        batch_of = batches[np.searchsorted(read, retain)]
    with database.transaction() as session:
        run = holder(session, run_id, fencing_token)
        run.plan = plan.to_json()
        run.counts = numbers
        training_set.keep(session)
        log.append(session, "run.planned", run=run.id)
    return Selection(
        retain=retain, held_out=held_out, plan=plan, batch_of=batch_of, members=members
    )


def to_leave_out(session: Session, model: ModelRow, dataset: DatasetRow) -> frozenset[int] | None:
    """Return the members concerned by what was forgotten since an ensemble's head.

    None if one is to be trained for it, or the model is of another kind. Both are locked.
    """
    head = registry.head_version(session, model)
    if head is None or not head.members:
        return None
    after, through = head.covers_epoch, dataset.forget_epoch
    gone = member_trainings.concerned(session, model, after=after, through=through)
    return None if member_trainings.fewest_for(model, head, gone) else gone


def begin_leaving_out(
    session: Session, run: RunRow, model: ModelRow, dataset: DatasetRow, gone: frozenset[int]
) -> tuple[Plan, Joined]:
    """Fix which forgotten records a run covers that leaves out what is ``to_leave_out``.

    The run, the dataset and the model are locked, or new.
    """
    policy = Policy.from_json(model.policy)
    plan = replace(Plan.from_json(run.plan), epsilon=policy.epsilon, delta=policy.delta)
    run.plan = plan.to_json()
    _fix(session, run, model, dataset)
    log.append(session, "run.planned", run=run.id)
    return plan, member_trainings.join(session, model, run, (), gone=gone)


def lock_for(session: Session, model: ModelRow) -> DatasetRow:
    """Lock a model and its dataset, which is returned, for a run that begins."""
    dataset = datasets.lock_dataset(session, model.dataset_id)
    session.refresh(model, with_for_update=True)
    return dataset


def _fix(
    session: Session,
    row: RunRow,
    model: ModelRow,
    dataset: DatasetRow,
    shards: Collection[str] = (),
) -> None:
    """Start a run, on the records that are not forgotten at this moment; all are locked."""
    if row.state == RunState.RUNNING:
        member_trainings.end_choice(session, row.id)
    row.state = RunState.RUNNING
    row.forget_epoch = dataset.forget_epoch
    if row.kind == RunKind.TRAIN:
        row.trained_through = datasets.read_through(session, dataset.id, shards)
        drop_attempt(session, model, "training began without these records")
    elif row.kind != RunKind.REFILL:
        start_obligations(session, row)
    log.append(session, "run.running", run=row.id)


def _counts(training_set: TrainingSet) -> list[list[int]]:
    """Return what ``RunRow.counts`` says of a training."""
    count = training_set.membership.members or 1
    learned, held_out = (
        np.bincount(each.members, minlength=count).tolist()
        for each in (training_set.records, training_set.held_out)
    )
    numbers = zip(range(count), learned, held_out, strict=True)
    return [[member, *some] for member, *some in numbers if any(some)]

"""Which members of an ensemble a run trains anew, and on which records."""

from collections.abc import Collection

from sqlalchemy.orm import Session

from app.domain.errors import LeaseLostError
from app.domain.states import RunKind
from app.ledger.tables import RunRow
from app.ledger.training import membership_of_run
from app.registry import repository as registry
from app.registry.shapes import TrainingSet
from app.registry.tables import ModelRow


def members_to_train(
    session: Session, model: ModelRow, training_set: TrainingSet, *, anew: bool
) -> dict[int, frozenset[int]]:
    """Return the records of each member of an ensemble that a run trains; none for other models.

    A training trains all of them. Any other run trains those with a record that was forgotten since
    the version before.
    """
    count, head = training_set.membership.members, registry.head_version(session, model)
    if count is None:
        return {}
    concerned: Collection[int] = range(count)
    if not anew and head is not None:
        concerned = training_set.concerned(after_epoch=head.covers_epoch)
    records: dict[int, set[int]] = {member: set() for member in sorted(concerned)}
    for record in training_set.records:
        if record.member in records and record.forgotten_epoch is None:
            records[record.member].add(record.seq)
    return {member: frozenset(seqs) for member, seqs in records.items()}


def members_of_run(session: Session, run: RunRow) -> dict[int, frozenset[int]]:
    """Return the same of a run that goes on, for another worker."""
    model = session.get_one(ModelRow, run.model_id)
    membership = membership_of_run(model, run)
    if membership is None or run.forget_epoch is None:
        raise LeaseLostError("the run is over")
    training_set = TrainingSet(session, model, membership, as_of=run.forget_epoch)
    return members_to_train(session, model, training_set, anew=run.kind == RunKind.TRAIN)

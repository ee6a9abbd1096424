"""What a training that is going has read, and what models owe because of it.

The membership of a training is its run's until the run publishes. Meanwhile the version before, if
there is one, stays what it was. A request that comes meanwhile is owed what either asks for; what
only one of them asked for ends with that one.
"""

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.plan import Plan
from app.domain.states import UNMET_OBLIGATION_STATES, ObligationState, RunKind
from app.ledger import obligations, repository
from app.ledger.tables import ForgottenRecordRow, ObligationRow, RunRow
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.tracking import Tracking
from app.registry.datasets.tables import RecordRow
from app.registry.membership import Membership, membership_at, membership_of
from app.registry.tables import ModelRow


def membership_of_run(model: ModelRow, run: RunRow) -> Membership | None:
    """Return which records a run reads: a training's own, else those of the model's lineage."""
    if run.kind != RunKind.TRAIN:
        return membership_of(model)
    if run.trained_through is None or run.forget_epoch is None:
        return None
    return membership_at(model, through=run.trained_through, after_epoch=run.forget_epoch)


def begun_at_epoch(model: ModelRow, run: RunRow, plan: Plan) -> int:
    """Return the epoch at which the training of a run's weights began: by this run, or before it.

    Records that were forgotten by then had no part in it.
    """
    anew = run.kind == RunKind.TRAIN or mechanism_named(plan.mechanism).trains_anew
    if not anew and model.tracking is not None:
        return Tracking.from_json(model.tracking).begun_at_epoch
    return run.forget_epoch or 0


def learned_through(session: Session, dataset_id: str) -> int:
    """Return the highest number of a dataset's records that any model has read, 0 if none."""
    through = (
        select(func.max(ModelRow.trained_through)).where(ModelRow.dataset_id == dataset_id),
        select(func.max(RunRow.trained_through))
        .join(ModelRow, ModelRow.id == RunRow.model_id)
        .where(ModelRow.dataset_id == dataset_id),
    )
    return max(session.scalar(query) or 0 for query in through)


def unconcerned(
    session: Session, model_id: str, membership: Membership | None
) -> Sequence[ObligationRow]:
    """Return the unmet obligations whose requests name no record that a lineage learned from.

    The model is locked; a lineage whose membership is None has learned from no record.
    """
    unmet = repository.obligations_of_model(session, model_id, UNMET_OBLIGATION_STATES)
    if not unmet or membership is None:
        return unmet
    query = (
        select(ForgottenRecordRow.request_id, RecordRow)
        .join(RecordRow, RecordRow.seq == ForgottenRecordRow.record_seq)
        .join(ObligationRow, ObligationRow.request_id == ForgottenRecordRow.request_id)
        .where(ObligationRow.model_id == model_id, ObligationRow.state.in_(UNMET_OBLIGATION_STATES))
        .execution_options(populate_existing=True)
    )
    concerned = {
        request_id for request_id, record in session.execute(query) if membership.touched_by(record)
    }
    return [obligation for obligation in unmet if obligation.request_id not in concerned]


def drop_attempt(session: Session, model: ModelRow, reason: str) -> None:
    """End what was owed only because of a training whose weights are gone.

    The model is locked.
    """
    ended = unconcerned(session, model.id, membership_of(model))
    obligations.end_unmet(session, ended, ObligationState.CANCELLED, reason)

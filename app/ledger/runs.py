"""Runs: created, leased, kept alive, requeued or failed. Times are from the database's clock."""

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.orm import Session

from app.domain.errors import ConflictError, LeaseLostError
from app.domain.ids import new_id
from app.domain.states import (
    ACTIVE_RUN_STATES,
    HELD_RUN_STATES,
    RETRYABLE_RUN_STATES,
    Phase,
    RunKind,
    RunState,
    WeightsSource,
)
from app.evidence import log
from app.ledger import outbox, repository
from app.ledger.obligations import fail_obligations, reopen_obligations
from app.ledger.tables import MemberTrainingRow, RunRow
from app.ledger.training import drop_attempt
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.planner import make_plan
from app.registry.forecasts import Forecast, Occasion, PlanMaker
from app.registry.membership import membership_of
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.endings import require_live
from app.runtime.database.leases import in_future, prolong
from app.storage.blobs import doom_attempt, reserve_for_run

MOST_POINTS = 256
"""Of what a run has reported on its way."""
_REPORTED = ("phase", "step", "epsilon", "loss")

_RETRY_DELAY_S = 1.0


def create_run(
    session: Session,
    model: ModelRow,
    kind: RunKind,
    forecast: Forecast,
    *,
    lease_s: float | None = None,
) -> RunRow:
    """Create a run of a model, which is locked or new, and hand it to the dispatcher.

    With ``lease_s`` the caller has it, leased.
    """
    forecast.require_fit(model)
    before = select(func.max(RunRow.created_at)).where(RunRow.model_id == model.id)
    after = before.scalar_subquery() + timedelta(microseconds=1)
    row = RunRow(
        id=new_id("run"),
        model_id=model.id,
        kind=kind,
        state=RunState.QUEUED,
        plan=forecast.plan.to_json(),
        attempt=0,
        fencing_token=0,
        created_at=func.greatest(func.now(), after),  # the newest, whatever the clock says
    )
    session.add(row)
    log.append(session, "run.queued", run=row.id, model=model.id, run_kind=kind)
    if lease_s is None:
        session.flush()
        outbox.post(session, outbox.Topic.ENQUEUE_RUN, row.id)
    else:
        _lease(session, row, lease_s=lease_s)
    return row


def lease(session: Session, run_id: str, *, lease_s: float) -> RunRow | None:
    """Lease the most urgent queued run, with a new fencing token; None if none waits.

    ``run_id`` is the one from the queue: it only says that there is work.
    """
    row = repository.most_urgent_run(session, run_id)
    return None if row is None else _leased(session, row, lease_s=lease_s)


def lease_new(session: Session, waiting: RunRow, *, lease_s: float) -> RunRow | None:
    """Lease a run that answers requests and was never leased; None if it is not that."""
    row = repository.run(session, waiting.id, lock=True)
    if (row.kind, row.state) != (RunKind.UNLEARN, RunState.QUEUED) or row.fencing_token:
        return None
    return _leased(session, row, lease_s=lease_s)


def _leased(session: Session, row: RunRow, *, lease_s: float) -> RunRow:
    _lease(session, row, lease_s=lease_s)
    session.flush()
    session.refresh(row)
    return row


def _lease(session: Session, row: RunRow, *, lease_s: float) -> None:
    row.state = RunState.LEASED
    row.attempt += 1
    row.fencing_token += 1
    row.lease_expires_at = in_future(lease_s)
    row.started_at = func.clock_timestamp()
    row.phase = row.step = row.total_steps = row.epsilon = row.loss = row.reports = None
    log.append(session, "run.leased", run=row.id, attempt=row.attempt)


def holder(session: Session, run_id: str, fencing_token: int) -> RunRow:
    """Lock and return a run still held under ``fencing_token``, or raise ``LeaseLostError``."""
    row = repository.run(session, run_id, lock=True)
    require_held(row, fencing_token)
    return row


def require_held(row: RunRow, fencing_token: int) -> None:
    """Raise ``LeaseLostError`` unless a run, which is locked, is still held under the token."""
    if row.fencing_token != fencing_token or row.state not in HELD_RUN_STATES:
        raise LeaseLostError("the run is held by another worker or is over")


def reserve_blob(
    session: Session, run_id: str, fencing_token: int, *, kind: str = "weights"
) -> str:
    """Return the id of the blob for a result of an attempt; raises what ``holder`` raises."""
    row = holder(session, run_id, fencing_token)
    dataset_id = session.get_one(ModelRow, row.model_id).dataset_id
    return reserve_for_run(session, kind, run_id=run_id, dataset_id=dataset_id)


def heartbeat(
    connection: Session | Connection,
    run_id: str,
    fencing_token: int,
    *,
    lease_s: float,
    progress: dict[str, object],
) -> None:
    """Prolong a lease and record progress; ``LeaseLostError`` if another worker holds the run."""
    prolong(
        connection,
        RunRow,
        RunRow.id == run_id,
        RunRow.fencing_token == fencing_token,
        RunRow.state.in_(HELD_RUN_STATES),
        lease_s=lease_s,
        what="run",
        progress=progress,
    )


def hand_back(session: Session, row: RunRow) -> None:
    """Queue a run again that its worker was asked to stop; such an attempt does not count."""
    row.attempt -= 1
    _requeue(session, row, delay_s=0.0)


def _end_attempt(session: Session, row: RunRow) -> None:
    """Take a run from its worker, with all that it has written."""
    row.lease_expires_at = None
    row.fencing_token += 1
    leave_nothing(session, row.id)


def leave_nothing(session: Session, run_id: str) -> None:
    """Give up what an attempt has written and not adopted; the run's row is locked."""
    session.execute(delete(MemberTrainingRow).where(MemberTrainingRow.run_id == run_id))
    doom_attempt(session, run_id)


def _requeue(session: Session, row: RunRow, *, delay_s: float) -> None:
    _end_attempt(session, row)
    row.state = RunState.QUEUED
    row.enqueued_at = None
    outbox.post(session, outbox.Topic.ENQUEUE_RUN, row.id, delay_s=delay_s)
    log.append(session, "run.requeued", run=row.id, attempt=row.attempt)


def give_up_attempt(
    session: Session,
    row: RunRow,
    *,
    reason: str,
    permanent: bool,
    max_attempts: int,
    too_low: bool = False,
) -> None:
    """End one attempt: queue the run again while attempts are left, else fail it.

    The reason's further lines are a traceback of the operator's code; requests get the first one.
    After a score that is ``too_low``, the model's next run trains anew, unless this one did.
    """
    if not permanent and row.attempt < max_attempts:
        _requeue(session, row, delay_s=_RETRY_DELAY_S * (row.attempt - 1))
        return
    end_run(session, row, RunState.FAILED, reason=reason)
    anew = row.kind == RunKind.TRAIN or mechanism_named(row.plan["mechanism"]).trains_anew
    if too_low and not anew:
        session.get_one(ModelRow, row.model_id).is_spent = True
    if row.kind == RunKind.REFILL:
        return
    if row.kind != RunKind.TRAIN:
        fail_obligations(session, row, reason.partition("\n")[0])
    # Obligations that did not wait for this run would otherwise wait for ever.
    outbox.post(session, outbox.Topic.SCHEDULE_MODEL, row.model_id)


def cancel_run(session: Session, run_id: str) -> RunRow:
    """End a run that is queued or going: its worker stops at its next step or heartbeat.

    Its obligations, and those that came meanwhile, wait again: for another try of this run, another
    policy, the model's next request, or the deadline's next warning, whichever comes first. What
    waited for a training is unlearned from the version before, if there is one; without one, the
    model has no weights until the run is tried again.
    """
    row = repository.run(session, run_id, lock=True)
    if row.state not in ACTIVE_RUN_STATES:
        raise ConflictError(f"the run is {row.state}; it can no longer be cancelled")
    end_run(session, row, RunState.CANCELLED)
    if row.kind == RunKind.TRAIN:
        outbox.post(session, outbox.Topic.SCHEDULE_MODEL, row.model_id)
    else:
        reopen_obligations(session, row)
    return row


def end_for_good(session: Session, model_id: str, *, reason: str) -> None:
    """End all runs of a model that is to have no weights; nothing is tried again.

    What it owes is for the caller to end, who locks the model afterwards.
    """
    while active := repository.lock_active_runs(session, model_id):
        for row in active:
            end_run(session, row, RunState.CANCELLED, reason=reason)
        session.flush()


def end_run(session: Session, row: RunRow, state: RunState, *, reason: str | None = None) -> None:
    """Take a run away from its worker for good; it publishes nothing.

    Its model is locked before any request, as wherever it changes what requests are owed.
    """
    model = session.get_one(ModelRow, row.model_id, with_for_update=True, populate_existing=True)
    _end_attempt(session, row)
    row.state = state
    row.failure_reason = reason
    row.finished_at = func.clock_timestamp()
    log.append(session, f"run.{state}", run=row.id, attempt=row.attempt)
    if row.kind == RunKind.TRAIN:
        how = "failed" if state == RunState.FAILED else "was cancelled"
        drop_attempt(
            session, model, f"training {how}, so no weights that learned from its records exist"
        )


def retry_run(database: Database, run_id: str, *, make: PlanMaker = make_plan) -> RunRow:
    """Create a new run like one that failed or was cancelled.

    A model that was withdrawn is trained from nothing instead, whatever became of its last run.
    Nothing is locked while ``make`` makes the plan.
    """
    with database.transaction() as session:
        row = repository.run(session, run_id)
        model = session.get_one(ModelRow, row.model_id)
        kind = _kind_of_retry(session, row, model)
        anew, refills = kind is RunKind.TRAIN, kind is RunKind.REFILL
        occasion = Occasion.of(session, model, anew=anew, refills=refills)
    forecast = occasion.forecast(make)
    with database.transaction() as session:
        model = session.get_one(ModelRow, model.id, with_for_update=True)
        row = repository.run(session, run_id)
        kind = _kind_of_retry(session, row, model)
        reopen_obligations(session, row)
        return create_run(session, model, kind, forecast)


def _kind_of_retry(session: Session, row: RunRow, model: ModelRow) -> RunKind:
    """Return what another try of a run does; raise ``ConflictError`` if there can be none."""
    require_live("model", model)
    trains = model.head_version_id is None and model.weights_source == WeightsSource.TRAIN
    withdrawn = trains and row.state == RunState.PUBLISHED
    if row.state not in RETRYABLE_RUN_STATES and not withdrawn:
        raise ConflictError(
            f"the run is {row.state}; only one that failed or was cancelled can be tried again"
        )
    # A second training would lose which records the version that it made was trained on; a refill
    # answers nothing that a run before it was to answer.
    answering = () if trains or row.kind != RunKind.UNLEARN else (RunKind.TRAIN, RunKind.UNLEARN)
    if repository.latest_run(session, row.model_id, *answering) is not row:
        raise ConflictError("a later run of this model exists; only the newest can be tried again")
    if not trains and membership_of(model) is None:
        raise ConflictError("the model waits for its weights: upload them again")
    return RunKind.TRAIN if trains else RunKind(row.kind)


def with_report(
    points: Sequence[Mapping[str, Any]], progress: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the points with what was reported last, at most ``MOST_POINTS`` of them.

    A report without a step, or with neither ε nor loss, adds none. When there are too many, every
    second one is dropped, never the last. Of weights that are not certified there is no loss.
    """
    point = {name: finite(progress.get(name)) for name in _REPORTED}
    if point["step"] is None or (point["epsilon"] is None and point["loss"] is None):
        return list(points)
    if point["phase"] == Phase.UNLEARNING:
        point["loss"] = None
    else:  # its ε stays, and says nothing of these steps
        if point["loss"] is None:
            return list(points)
        point["epsilon"] = None
    kept = [*points, point]
    if len(kept) > MOST_POINTS:
        kept = kept[::-2][::-1]
    return kept


def finite(value: object) -> object:
    """Return a value; None for infinity and NaN, which JSON cannot hold and never equals itself."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

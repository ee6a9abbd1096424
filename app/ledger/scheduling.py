"""From what models owe to runs: one for all due obligations of a model.

A model of whose training records none is left cannot unlearn: it is withdrawn instead.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy.orm import Session

from app.domain.errors import CalibrationError, ParameterError, PlanError
from app.domain.states import ObligationState, RunKind
from app.ledger import outbox, repository
from app.ledger.obligations import end_unmet
from app.ledger.runs import create_run, end_for_good
from app.ledger.tables import ObligationRow, RunRow
from app.ledger.withdrawal import EMPTIED, withdraw
from app.registry import counts
from app.registry.forecasts import Occasion
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.wakeups import Signal, wake
from app.runtime.spans import Facts, Step, Work, at_commit


def due_models(database: Database) -> Sequence[str]:
    """Return the ids of the models that ``schedule_model`` is to be called for."""
    with database.transaction() as session:
        return outbox.due_subjects(session, outbox.Topic.SCHEDULE_MODEL)


def _withdraw_emptied(database: Database, model_id: str) -> bool:
    """Withdraw a model that owes something and has no record left to learn from.

    Returns:
        Whether it was withdrawn; else its obligations need a run.
    """
    with database.transaction() as session:
        model = session.get_one(ModelRow, model_id)
        if not _owes_and_is_emptied(session, model):
            return False
    with database.transaction() as session:
        end_for_good(session, model_id, reason=EMPTIED)
        model = session.get_one(ModelRow, model_id, with_for_update=True)
        if not _owes_and_is_emptied(session, model):
            session.rollback()
            return False
        outbox.remove(session, outbox.Topic.SCHEDULE_MODEL, model_id)
        withdraw(session, model, reason=EMPTIED)
        wake(session, Signal.ERASABLE)
    return True


def _owes_and_is_emptied(session: Session, model: ModelRow) -> bool:
    return bool(_waiting_obligations(session, model)) and counts.is_emptied(session, model)


def schedule_model(database: Database, model_id: str) -> RunRow | None:
    """Turn a model's open obligations into one run, unless one is going.

    Obligations that arrive while a run is going wait for the next one. If no plan can meet the
    policy any more, they fail with the reason. The outbox's rows are then removed; but if the model
    changed while its run was planned, they stay for the next time. A model that has no record left
    to learn from is withdrawn.
    """
    if _withdraw_emptied(database, model_id):
        return None
    begun_ns = time.time_ns()
    occasion, forecast = None, None
    refusal: Exception | None = None
    try:
        with database.transaction() as session:
            model = session.get_one(ModelRow, model_id)
            if _waiting_obligations(session, model):
                occasion = Occasion.of(session, model)
        if occasion is not None:
            forecast = occasion.forecast()
    except (PlanError, ParameterError, CalibrationError) as error:
        refusal = error
    with database.transaction() as session:
        model = session.get_one(ModelRow, model_id, with_for_update=True)
        obligations = _waiting_obligations(session, model)
        if obligations and not (refusal if occasion is None else occasion.fits(model)):
            return None
        outbox.remove(session, outbox.Topic.SCHEDULE_MODEL, model_id)
        if not obligations:
            return None
        # Without a version, the model owes a run for uploaded weights that were never certified.
        kind = RunKind.CERTIFY if model.head_version_id is None else RunKind.UNLEARN
        run = None
        if forecast is None:
            end_unmet(session, obligations, ObligationState.FAILED, str(refusal))
        else:
            run = create_run(session, model, kind, forecast)
        facts = Facts(model=model.name, run_kind=kind)
        failed = None if refusal is None else type(refusal).__name__
        note_planned(session, model, obligations, run, begun_ns=begun_ns, facts=facts, error=failed)
        return run


def note_planned(
    session: Session,
    model: ModelRow,
    obligations: Collection[ObligationRow],
    run: RunRow | None,
    *,
    begun_ns: int,
    facts: Facts,
    error: str | None = None,
) -> None:
    """Have traces tell, once the session's transaction has committed, that a run was planned."""
    if run is not None:
        facts = replace(facts, run=run.id, mechanism=run.plan["mechanism"])
    work = Work(("plan", model.id, begun_ns), [each.request_id for each in obligations])
    spans = partial(work.spans, Step.PLAN, begun_ns=begun_ns, facts=facts, error=error)
    at_commit(session, spans)


def _waiting_obligations(session: Session, model: ModelRow) -> Sequence[ObligationRow]:
    """Return the open obligations that a new run would take on; none while one is going.

    A refill takes none on, and goes on beside another run.
    """
    if repository.active_run(session, model.id, besides=RunKind.REFILL) is not None:
        return []
    return repository.obligations_of_model(session, model.id, (ObligationState.OPEN,))

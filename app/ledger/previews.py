"""What a forget request would reach and cost: it is accepted as any other, and rolled back.

So the answer is the one that the request itself would get, with the same refusals, and nothing of
it is stored or logged. Planning needs no lock and comes after that, with the records counted as
forgotten.
"""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.domain.errors import CalibrationError, ParameterError, PlanError
from app.domain.plan import Plan
from app.domain.states import ObligationState
from app.ledger import repository
from app.ledger.accepting import Acceptance
from app.ledger.costs import Seconds, measured, seconds_of
from app.ledger.new_requests import NewForgetRequest
from app.ledger.views import request_views
from app.ledger.views.request_views import ObligationView, RequestView
from app.registry import repository as registry
from app.registry.counts import Lineage
from app.registry.forecasts import Occasion, PlanMaker
from app.registry.membership import membership_of
from app.runtime.database import Database


@dataclass(frozen=True)
class Effect:
    """What a request would be owed by one model.

    Attributes:
        plan: of the run that it would need, if it needs one.
        seconds: how long that run takes, where ones like it were measured.
        withdrawn: whether the model would be withdrawn, having no record left to learn from.
        problem: why no run could answer it under the policy.
    """

    obligation: ObligationView
    plan: Plan | None = None
    seconds: Seconds | None = None
    withdrawn: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Preview:
    """A request that was not made, and what each model would owe it."""

    view: RequestView
    effects: tuple[Effect, ...]


def preview(
    database: Database,
    acceptance: Acceptance,
    request: NewForgetRequest,
    *,
    api_key_id: str,
    make: PlanMaker,
) -> Preview:
    """Return what a request would reach and cost; nothing changes.

    Raises:
        ExpungeError: as ``Acceptance.submit`` does.
    """
    view, records = _undone(database, acceptance, request, api_key_id=api_key_id)
    effects = tuple(
        Effect(owed)
        if owed.state == ObligationState.CERTIFIED
        else _of_run(database, owed, records, make)
        for owed in view.obligations
    )
    return Preview(view, effects)


def _undone(
    database: Database, acceptance: Acceptance, request: NewForgetRequest, *, api_key_id: str
) -> tuple[RequestView, frozenset[int]]:
    """Accept a request, read it with the numbers of its records, and take it back."""
    with database.transaction() as session:
        acceptance.present_releases.warm(session, request.dataset)
    with database.transaction() as session:
        row, _ = acceptance.submit(session, request, api_key_id=api_key_id)
        session.flush()
        view = request_views.one(session, row.id)
        records = frozenset(record.seq for record in repository.records_of(session, row.id))
        session.rollback()
    return view, records


def _of_run(
    database: Database, owed: ObligationView, records: frozenset[int], make: PlanMaker
) -> Effect:
    with database.snapshot() as session:
        occasion = _occasion(session, owed.model, records)
        earlier = measured(session, registry.model_named(session, owed.model))
    if occasion is None:
        return Effect(owed, withdrawn=True)
    try:
        plan = occasion.forecast(make).plan
    except (PlanError, ParameterError, CalibrationError) as error:
        return Effect(owed, problem=str(error))
    seconds = seconds_of(earlier, plan.mechanism, plan.predicted["gradient_computations"])
    return Effect(owed, plan=plan, seconds=seconds)


def _occasion(session: Session, name: str, records: frozenset[int]) -> Occasion | None:
    """Return the input for planning once the records are forgotten; None if none is left."""
    model = registry.model_named(session, name)
    if membership_of(model) is None:
        return Occasion.of(session, model)
    lineage = Lineage(session, model, forgetting=records)
    return Occasion.of(session, model, lineage) if lineage.retained else None

"""What the operator's page reads from the ledger beside requests and runs; it changes nothing."""

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.states import ObligationState, RequestState
from app.ledger import request_views
from app.ledger.deadlines import IS_OPEN
from app.ledger.request_views import RequestView
from app.ledger.tables import ForgetRequestRow, ObligationRow, OutboxRow
from app.registry.tables import ModelRow


def owed_requests(session: Session, *, limit: int) -> Sequence[RequestView]:
    """Return the requests that are still to be met, the earliest deadline first."""
    return request_views.most_urgent(session, IS_OPEN, limit=limit)


def failed_requests(session: Session, *, limit: int) -> Sequence[RequestView]:
    """Return the requests that failed, the earliest deadline first."""
    failed = ForgetRequestRow.state == RequestState.FAILED
    return request_views.most_urgent(session, failed, limit=limit)


def model_names(session: Session) -> Sequence[str]:
    """Return the names of all models, in order."""
    return session.scalars(select(ModelRow.name).order_by(ModelRow.name)).all()


def owed_by_model(session: Session) -> Mapping[str, int]:
    """Return the number of each model's unmet obligations, by model id."""
    unmet = (ObligationState.OPEN, ObligationState.RUNNING, ObligationState.FAILED)
    query = select(ObligationRow.model_id, func.count()).where(ObligationRow.state.in_(unmet))
    rows = session.execute(query.group_by(ObligationRow.model_id))
    return {row[0]: row[1] for row in rows}


def outbox_depth(session: Session) -> int:
    """Return the number of outbox rows, due or not."""
    return session.scalar(select(func.count()).select_from(OutboxRow)) or 0

"""What the operator's page reads of all models; it changes nothing."""

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.domain.states import UNMET_OBLIGATION_STATES
from app.ledger.tables import ObligationRow
from app.registry.tables import ModelRow


def model_names(session: Session) -> Sequence[str]:
    """Return the names of all models, in order; runs of deleted ones are listed, too."""
    return session.scalars(select(ModelRow.name).distinct().order_by(ModelRow.name)).all()


def owed_by_model(session: Session) -> Mapping[str, int]:
    """Return the number of each model's unmet obligations, by model id."""
    query = select(ObligationRow.model_id, func.count()).where(
        ObligationRow.state.in_(UNMET_OBLIGATION_STATES)
    )
    rows = session.execute(query.group_by(ObligationRow.model_id))
    return {row[0]: row[1] for row in rows}

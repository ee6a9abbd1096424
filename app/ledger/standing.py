"""How the models on a dataset stand, read at once for all requests that are accepted together."""

from dataclasses import dataclass

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from app.domain.states import ACTIVE_RUN_STATES
from app.ledger.tables import RunRow
from app.registry.tables import ModelRow, VersionRow


@dataclass(frozen=True)
class Standing:
    """A locked model, its head, and its run that is queued or going, as far as there are any."""

    model: ModelRow
    head: VersionRow | None
    run: RunRow | None

    @property
    def covers_epoch(self) -> int | None:
        """The epoch that the head covers; None without a head."""
        return None if self.head is None else self.head.covers_epoch


def standings(session: Session, dataset_id: str) -> list[Standing]:
    """Lock the models on a dataset, in a fixed order, and return how they stand.

    They are read by a statement that begins when the locks are held: one that had waited for a lock
    would show the new row of a model beside the old ones of what it refers to.
    """
    mine = ModelRow.dataset_id == dataset_id
    session.execute(select(ModelRow.id).where(mine).order_by(ModelRow.id).with_for_update())
    is_active = and_(RunRow.model_id == ModelRow.id, RunRow.state.in_(ACTIVE_RUN_STATES))
    query = (
        select(ModelRow, VersionRow, RunRow)
        .outerjoin(VersionRow, VersionRow.id == ModelRow.head_version_id)
        .outerjoin(RunRow, is_active)
        .where(mine)
        .order_by(ModelRow.id)
        .execution_options(populate_existing=True)
    )
    return [Standing(*row) for row in session.execute(query)]

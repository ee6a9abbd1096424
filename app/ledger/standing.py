"""How the models on a dataset stand, read at once for all requests that are accepted together."""

from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from app.domain.policy import Policy
from app.domain.states import ACTIVE_RUN_STATES, RunKind, RunState
from app.ledger.tables import RunRow
from app.ledger.training import membership_of_run
from app.registry.membership import Membership, membership_of
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

    @cached_property
    def policy(self) -> Policy:
        """The model's."""
        return Policy.from_json(self.model.policy)

    @cached_property
    def membership(self) -> Membership | None:
        """That of the head or the imported weights, if any."""
        return membership_of(self.model)

    @cached_property
    def training(self) -> Membership | None:
        """That of the training that is going and has read its records, if any."""
        run = self.run
        if run is None or run.kind != RunKind.TRAIN or run.state != RunState.RUNNING:
            return None
        return membership_of_run(self.model, run)


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

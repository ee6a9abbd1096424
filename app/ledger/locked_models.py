"""The models on a dataset, locked, and what a new request has to do with each.

They are read at once for all requests that are accepted together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from app.domain.policy import Policy
from app.domain.states import ACTIVE_RUN_STATES, RunKind, RunState
from app.ledger.tables import RunRow
from app.ledger.training import membership_of_run
from app.registry.datasets.repository import KeyedRecord
from app.registry.membership import Membership, membership_of
from app.registry.tables import ModelRow, VersionRow


@dataclass(frozen=True)
class LockedModel:
    """A locked model, its head, and its run that is queued or going, as far as there are any.

    A refill does not count: it answers no request.
    """

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


class Involvement(Enum):
    """What a request has to do with a model.

    It names a record that a head, or a training that is going, learned from and that no certificate
    covers (``UNCOVERED``); else, one that the head learned from (``UNLEARNED``); else, other
    records of the lineage: all that it names are held out from every training (``HELD_OUT``), or
    this one left some out (``LEFT_OUT``); or none.
    """

    UNCOVERED = auto()
    UNLEARNED = auto()
    HELD_OUT = auto()
    LEFT_OUT = auto()
    NONE = auto()

    @classmethod
    def of(cls, records: Sequence[KeyedRecord], model: LockedModel) -> "Involvement":
        """Return it for a new request, given its records as they are from now on."""
        covers, membership = model.covers_epoch, model.membership
        included, touched = _part_of(membership, records)
        in_training = _part_of(model.training, records)[1]  # read before they were forgotten
        if in_training or (touched and (covers is None or max(touched) > covers)):
            return cls.UNCOVERED
        if membership is None or covers is None or not included:
            return cls.NONE
        if touched:
            return cls.UNLEARNED
        return cls.HELD_OUT if membership.holds_out(records) else cls.LEFT_OUT


def _part_of(
    membership: Membership | None, records: Sequence[KeyedRecord]
) -> tuple[bool, list[int]]:
    """Return whether a lineage has any of the records, and when those that it learned went."""
    if membership is None:
        return False, []
    included = [record for record in records if membership.includes(record)]
    touched = [
        record.forgotten_epoch
        for record in included
        if record.forgotten_epoch is not None and membership.learned_from(record)
    ]
    return bool(included), touched


def locked_models(session: Session, dataset_id: str) -> list[LockedModel]:
    """Lock the models on a dataset, in a fixed order, and return how they stand.

    They are read by a statement that begins when the locks are held: one that had waited for a lock
    would show the new row of a model beside the old ones of what it refers to.
    """
    mine = ModelRow.dataset_id == dataset_id
    session.execute(select(ModelRow.id).where(mine).order_by(ModelRow.id).with_for_update())
    is_active = and_(
        RunRow.model_id == ModelRow.id,
        RunRow.state.in_(ACTIVE_RUN_STATES),
        RunRow.kind != RunKind.REFILL,
    )
    query = (
        select(ModelRow, VersionRow, RunRow)
        .outerjoin(VersionRow, VersionRow.id == ModelRow.head_version_id)
        .outerjoin(RunRow, is_active)
        .where(mine)
        .order_by(ModelRow.id)
        .execution_options(populate_existing=True)
    )
    return [LockedModel(*row) for row in session.execute(query)]

"""The state of a model's lineage that forget requests need, read at once for a whole dataset."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.registry.tables import ModelRow, VersionRow


@dataclass(frozen=True)
class Standing:
    """The part of a model that decides its obligation for a forget request.

    Attributes:
        covers_epoch: the epoch that its head covers; None without a head.
    """

    covers_epoch: int | None
    id: str
    name: str
    policy: dict[str, Any]
    recipe: dict[str, Any]
    weights_source: str
    split_salt: bytes
    trained_through: int | None
    trained_after_epoch: int | None


def standings(session: Session, dataset_id: str) -> list[Standing]:
    """Return the models trained on a dataset, locked in a fixed order.

    They are read by a statement that begins when the locks are held: one that had waited for a lock
    would show the new row of a model beside the old ones of what it refers to.
    """
    mine = ModelRow.dataset_id == dataset_id
    session.execute(select(ModelRow.id).where(mine).order_by(ModelRow.id).with_for_update())
    query = (
        select(
            VersionRow.covers_epoch,
            *(getattr(ModelRow, name) for name in list(Standing.__dataclass_fields__)[1:]),
        )
        .outerjoin(VersionRow, VersionRow.id == ModelRow.head_version_id)
        .where(mine)
        .order_by(ModelRow.id)
    )
    return [Standing(*row) for row in session.execute(query)]

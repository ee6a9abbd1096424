"""What a new request has to do with a model, decided from what was read of each."""

from collections.abc import Sequence
from enum import Enum, auto

from app.ledger.standing import Standing
from app.registry.datasets.repository import KeyedRecord
from app.registry.membership import Membership


class Part(Enum):
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
    def of(cls, records: Sequence[KeyedRecord], model: Standing) -> "Part":
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
    included = [
        (record, life.forgotten)
        for record in records
        if (life := membership.life_of(record)) is not None
    ]
    touched = [
        epoch for record, epoch in included if epoch is not None and membership.learned_from(record)
    ]
    return bool(included), touched

"""What each process remembers of lineages: their fixed batches, and records that they have left.

Which batch a record is in never changes, because rows outlive erasure. Of a lineage only where each
batch begins is kept, so that a request is not answered by reading all other records again.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from sqlalchemy.orm import Session

from app.registry.membership import Membership, batch_digest, membership_of
from app.registry.tables import ModelRow
from app.registry.training_set import TrainingSet

_MOST_REMEMBERED = 256
_OF_EACH = 1000
_AT_A_TIME = 32
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Newest(OrderedDict[Key, Value]):
    """Keeps the entries that were added last; they are added safely between threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()

    def add(self, key: Key, value: Value) -> Value:
        """Keep a value in place of the oldest; return it."""
        with self._lock:
            self[key] = value
            if len(self) > _MOST_REMEMBERED:
                self.popitem(last=False)
        return value


@dataclass(frozen=True)
class Partition:
    """Where each batch begins: the first digest of each, in order."""

    membership: Membership
    starts: tuple[bytes, ...]

    def batch_of(self, record_key: bytes) -> int:
        """Return the batch of a training record of the lineage."""
        return bisect_right(self.starts, batch_digest(self.membership, record_key)) - 1


class Partitions:
    """Remembers the partitions that were asked for last."""

    def __init__(self) -> None:
        self._known: Newest[Hashable, Partition] = Newest()

    def of_lineage(
        self, session: Session, model: ModelRow, *, batch_size: int, begun_at_epoch: int
    ) -> Partition:
        """Return the partition of the training of a model's head, which began at an epoch.

        The first time, all its records are read.
        """
        training = model.id, membership_of(model), batch_size, begun_at_epoch
        known = self._known.get(training)
        if known is not None:
            return known
        training_set = TrainingSet(session, model)
        starts = training_set.starts(batch_size, begun_at_epoch=begun_at_epoch)
        return self._known.add(training, Partition(training_set.membership, starts))


class Survivors:
    """Remembers, of some lineages, records that they had left.

    To find one may mean to read past all that were forgotten. Known ones are looked up, and dropped
    for good where they were forgotten since.
    """

    def __init__(self) -> None:
        self._known: Newest[Hashable, list[int]] = Newest()

    def is_emptied(self, session: Session, model: ModelRow) -> bool:
        """Do as ``TrainingSet.is_emptied`` does; the caller holds the dataset's lock."""
        training_set = TrainingSet(session, model)
        lineage = (model.id, training_set.membership)
        known = self._known.get(lineage, [])
        while known:
            lasting = training_set.lasting(known[-_AT_A_TIME:])
            known[-_AT_A_TIME:] = lasting
            if lasting:
                return False
        if training_set.is_emptied:
            return True
        self._known.add(lineage, training_set.survivors(_OF_EACH))
        return False

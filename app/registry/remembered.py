"""What each process remembers of lineages: where their fixed batches begin.

Which batch a record is in never changes, because rows outlive erasure. So a request is not answered
by reading all other records again.
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


_known: Newest[Hashable, Partition] = Newest()


def partition_of(
    session: Session, model: ModelRow, *, batch_size: int, begun_at_epoch: int
) -> Partition:
    """Return the partition of the training of a model's head, which began at an epoch.

    The first time in a process, all its records are read.
    """
    training = model.id, membership_of(model), batch_size, begun_at_epoch
    known = _known.get(training)
    if known is not None:
        return known
    training_set = TrainingSet(session, model)
    starts = training_set.starts(batch_size, begun_at_epoch=begun_at_epoch)
    return _known.add(training, Partition(training_set.membership, starts))

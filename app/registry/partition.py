"""The fixed batches of a lineage's training records, as each process remembers them.

Which batch a record is in never changes, because rows outlive erasure. Of a lineage only where each
batch begins is kept, so that a request is not answered by reading all other records again.
"""

from bisect import bisect_right
from dataclasses import dataclass
from threading import Lock

from sqlalchemy.orm import Session

from app.registry.membership import Membership, batch_digest, membership_of
from app.registry.shapes import TrainingSet
from app.registry.tables import ModelRow

_MOST_REMEMBERED = 256


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
        self._known: dict[tuple[str, Membership, int], Partition] = {}
        self._lock = Lock()

    def of_lineage(self, session: Session, model: ModelRow, *, batch_size: int) -> Partition:
        """Return the partition of a model's lineage; the first time, all its records are read."""
        membership = membership_of(model)
        known = None if membership is None else self._known.get((model.id, membership, batch_size))
        return known or self._remember(TrainingSet(session, model), model.id, batch_size)

    def _remember(self, training_set: TrainingSet, model_id: str, batch_size: int) -> Partition:
        membership = training_set.membership
        digests = sorted(batch_digest(membership, record.key) for record in training_set.records)
        partition = Partition(membership, tuple(digests[::batch_size]))
        with self._lock:
            while len(self._known) >= _MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[model_id, membership, batch_size] = partition
        return partition

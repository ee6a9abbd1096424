"""Whether a lineage has a record left to learn from, for callers who wait for the answer."""

from collections.abc import Hashable
from threading import Lock

from sqlalchemy.orm import Session

from app.registry.shapes import TrainingSet
from app.registry.tables import ModelRow

_MOST_REMEMBERED = 256
_OF_EACH = 1000
_AT_A_TIME = 32


class Survivors:
    """Remembers, of some lineages, records that they had left.

    To find one may mean to read past all that were forgotten. Known ones are looked up, and dropped
    for good where they were forgotten since.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[int]] = {}
        self._lock = Lock()

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
        with self._lock:
            while len(self._known) >= _MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[lineage] = training_set.survivors(_OF_EACH)
        return False

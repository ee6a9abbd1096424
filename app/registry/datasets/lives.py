"""The lives of a record: the periods in which it may be used for training.

Time is counted in the epochs of the record's dataset. A forget request ends a life. If it is
cancelled and its records are restored, a new life begins; the ended one stays ended.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Life(NamedTuple):
    """One life of a record.

    Attributes:
        began: the epoch of its restoration; 0 for the first life, which begins with the upload.
        forgotten: the epoch of the request that ended it; None while it lasts.
    """

    began: int
    forgotten: int | None

    def forgotten_by(self, epoch: int) -> bool:
        """Return whether it had ended by ``epoch``."""
        return self.forgotten is not None and self.forgotten <= epoch


class Lived(Protocol):
    """A record's epochs; see ``RecordRow``."""

    @property
    def forgotten_epoch(self) -> int | None:
        """When its newest life ended; None while it lasts."""

    @property
    def absences(self) -> Sequence[int] | None:
        """When each earlier life ended and the next one began; None for a record of one life."""


def life_at(record: Lived, epoch: int) -> Life:
    """Return the newest life that had begun by ``epoch``, even if it had ended by then."""
    if not record.absences:
        return Life(0, record.forgotten_epoch)
    began = [0, *record.absences[1::2]]
    ended = [*record.absences[::2], record.forgotten_epoch]
    lives = [Life(*bounds) for bounds in zip(began, ended, strict=True)]
    return next(life for life in reversed(lives) if life.began <= epoch)

"""Which shards hold a run's records: found in one pass over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import GoneError, RunFailedError
from workers.data.part import Part, places_of


@dataclass(frozen=True, eq=False)
class Holding:
    """What a shard holds of some records.

    Attributes:
        shard_id: the shard.
        places: int64 [n], of its records among all of them in the order of sequence numbers.
    """

    shard_id: str
    places: NDArray[np.int64]


class Survey:
    """What shards hold of some groups of records.

    Args:
        groups: sequence numbers, int64 [n] each, ascending.
    """

    def __init__(self, groups: Sequence[NDArray[np.int64]]) -> None:
        self._groups = groups
        self._found: list[list[Holding]] = [[] for _ in groups]

    def take(self, shard_id: str, part: Part) -> None:
        """Note what a shard holds."""
        for group, holdings in zip(self._groups, self._found, strict=True):
            _, places = places_of(part.seqs, group)
            if len(places):
                holdings.append(Holding(shard_id, places))

    def holdings(self) -> list[list[Holding]]:
        """Return which shards hold the records of each group.

        Raises:
            RunFailedError: a record is in two shards.
            GoneError: a record is in none.
        """
        for group, holdings in zip(self._groups, self._found, strict=True):
            _require_each_once(len(group), holdings)
        return self._found


def _require_each_once(records: int, holdings: Sequence[Holding]) -> None:
    times = np.zeros(records, dtype=np.int64)
    for holding in holdings:
        np.add.at(times, holding.places, 1)
    if (times > 1).any():
        raise RunFailedError("a record of the model is stored twice")
    if (times == 0).any():
        raise GoneError("a record of the model is in no shard")

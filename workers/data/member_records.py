"""An ensemble's records, member by member: in memory only until their member is trained.

Whether a member's records fit into memory follows from that member's own records and from public
sizes alone, as everything must that decides how it is trained: members are independent.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import GoneError
from workers.data.examples import Examples
from workers.data.forms import FeatureForm
from workers.data.part import Part
from workers.data.selecting import Selected


class MemberRecords:
    """The records of the members that a run trains.

    Args:
        seqs: by member, the sequence numbers of its records, int64 [n], ascending.
        form: what encoded records look like.
        parts: reads all shards, one after the other.
        most: how many records may be held at once; a single member may have more.

    Attributes:
        seqs: as given.
    """

    def __init__(
        self,
        seqs: Mapping[int, NDArray[np.int64]],
        form: FeatureForm,
        parts: Callable[[], Iterable[Part]],
        *,
        most: int,
    ) -> None:
        self.seqs = seqs
        self._form = form
        self._parts = parts
        self._most = most
        self._held: dict[int, Selected] = {}
        self._given: set[int] = set()

    def of(self, member: int) -> Examples:
        """Return a member's records, once; all shards are read for as many members as fit.

        Raises:
            GoneError: one of them is in no shard any more.
        """
        if member not in self._held:
            self._read(member)
        self._given.add(member)
        selected = self._held.pop(member)
        if not selected.is_complete:
            raise GoneError("a record that a member learns from is not in its shard any more")
        return selected.examples()

    def _read(self, first: int) -> None:
        self._held = {each: Selected(self.seqs[each], self._form) for each in self._next(first)}
        for part in self._parts():
            for selected in self._held.values():
                selected.take(part)

    def _next(self, first: int) -> list[int]:
        chosen, held = [first], len(self.seqs[first])
        for member in sorted(self.seqs.keys() - self._given - {first}):
            if member > first and held + len(self.seqs[member]) <= self._most:
                chosen.append(member)
                held += len(self.seqs[member])
        return chosen

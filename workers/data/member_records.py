"""An ensemble's records, member by member: in memory only while their member is trained.

Whether a member's records fit into memory follows from that member's own records and from public
sizes alone, as everything must that decides how it is trained: members are independent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.data.part import Part
from workers.data.selecting import Selected
from workers.training.data import Examples
from workers.training.features import FeatureForm


@dataclass(frozen=True, eq=False)
class MemberRecords:
    """The records of the members that a run trains.

    Attributes:
        seqs: by member, the sequence numbers of its records, int64 [n], ascending.
        form: what encoded records look like.
        parts: reads all shards, one after the other.
        most: how many records may be held at once.
    """

    seqs: Mapping[int, NDArray[np.int64]]
    form: FeatureForm
    parts: Callable[[], Iterable[Part]]
    most: int

    def each(self) -> Iterator[tuple[int, Examples]]:
        """Yield each member with its records; shards are read once for as many as fit."""
        for members in self._together():
            chosen = {member: Selected(self.seqs[member], self.form) for member in members}
            for part in self.parts():
                for selected in chosen.values():
                    selected.take(part)
            for member in members:
                yield member, chosen.pop(member).examples()

    def _together(self) -> Iterator[list[int]]:
        members: list[int] = []
        held = 0
        for member, seqs in self.seqs.items():
            if members and held + len(seqs) > self.most:
                yield members
                members, held = [], 0
            members.append(member)
            held += len(seqs)
        if members:
            yield members

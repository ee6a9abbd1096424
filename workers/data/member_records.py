"""An ensemble's records, member by member: in memory only until their member is trained.

A member's records are never streamed: a run whose largest member does not fit is refused before it
reads one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import GoneError
from app.registry.datasets import repository as datasets
from app.services import Services
from workers.data.memory import Footprint, give_back
from workers.data.shards import Read, Selected
from workers.leases.outages import outlast_outages
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.part import Part, in_order

_SHARE_HELD = 4
"""What part of the allowance the records of several members may take at once."""


class MemberRecords:
    """The records of the members that a run trains.

    Args:
        seqs: by member, the sequence numbers of its records, int64 [n], ascending.
        form: what encoded records look like.
        parts: reads the records with some numbers, which ascend, shard after shard.
        most: how many records may be held at once; a single member may have more.

    Attributes:
        seqs: as given.
    """

    def __init__(
        self,
        seqs: Mapping[int, NDArray[np.int64]],
        form: InputForm,
        parts: Callable[[NDArray[np.int64]], Iterable[Part]],
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
            self.read(first=member)
        self._given.add(member)
        selected = self._held.pop(member)
        if not selected.is_complete:
            raise GoneError("a record that a member learns from is not in its shard any more")
        return selected.examples()

    def read(self, parts: Iterable[Part] | None = None, *, first: int = 0) -> None:
        """Take what ``parts`` have of the ``first`` member, and of as many more as fit."""
        self._held = {each: Selected(self.seqs[each], self._form) for each in self._next(first)}
        if parts is None:
            parts = self._parts(in_order(self.seqs[each] for each in self._held))
        for part in parts:
            for selected in self._held.values():
                selected.take(part)

    def _next(self, first: int) -> list[int]:
        chosen, held = list[int](), 0
        for member in sorted(each for each in self.seqs.keys() - self._given if each >= first):
            held += len(self.seqs[member])
            if chosen and held > self._most:
                break
            chosen.append(member)
        return chosen


def member_records(
    services: Services,
    dataset_id: str,
    form: InputForm,
    chosen: Mapping[int, NDArray[np.int64]],
    footprint: Footprint,
    read: Read,
    *,
    allowed: int,
    check: Callable[[], None],
    measured: int = 0,
) -> MemberRecords:
    """Return what reads the records of members, given by their sequence numbers, ascending.

    Args:
        services: where the dataset's shards are known.
        dataset_id: of the ensemble.
        form: what encoded records look like.
        chosen: by member.
        footprint: of the run, or of what this worker does of it.
        read: reads a shard.
        allowed: the bytes that this worker may use.
        check: whether the work may continue.
        measured: how many records are in memory besides, to be measured on.

    Raises:
        RunFailedError: that needs more memory than this worker may use.
    """
    largest = max(map(len, chosen.values()), default=0)
    needs = footprint.of_member(largest, measured=measured)
    if needs.total > allowed:
        needs.refuse(
            allowed,
            why="a member of the ensemble has its records in memory, and",
            advice="define a model with more members, run it on a larger machine",
        )

    def parts(wanted: NDArray[np.int64]) -> Iterator[Part]:
        with services.database.transaction() as session:
            shards = [each.id for each in datasets.shards(session, dataset_id) if each.rows]
        for shard_id in shards:
            yield outlast_outages(check, partial(read, shard_id, wanted))
        give_back()

    return MemberRecords(
        chosen,
        form,
        parts,
        most=allowed // _SHARE_HELD // footprint.record_bytes,
    )

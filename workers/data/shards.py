"""A dataset's records as a model sees them: from all shards, or only from those that hold some."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import GoneError, RunFailedError
from app.registry.datasets import repository as datasets
from app.registry.datasets.tables import ShardRow
from app.services import Services
from workers.seal.write_guard import store_reachable
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.part import Decode, Part, Wanted, places_of

_ATTEMPTS = 5
Result = TypeVar("Result")
Read = Callable[[str, Wanted], Part]
"""Returns the wanted records of a shard, by its id."""


def read_shards(services: Services, dataset_id: str, read: Read) -> list[Part]:
    """Return every shard of a dataset.

    Raises:
        GoneError: a shard kept changing while it was read.
    """
    with services.database.transaction() as session:
        shard_ids = [shard.id for shard in datasets.shards(session, dataset_id) if shard.rows]
    return [read(shard_id, None) for shard_id in shard_ids]


def read_records(
    services: Services, dataset_id: str, read: Read, wanted: NDArray[np.int64]
) -> list[Part] | None:
    """Return these records alone, given by their numbers, ascending.

    No shard is read that holds none of them, and of one at a time there is more in memory.

    Returns:
        None if one of them is not there: it was erased, or the ledger names another shard.

    Raises:
        GoneError: a shard kept changing while it was read.
    """
    with services.database.transaction() as session:
        shard_ids = datasets.shards_of(session, dataset_id, wanted)
    parts = [read(shard_id, wanted) for shard_id in shard_ids]
    found = np.concatenate([wanted[:0], *(part.seqs for part in parts)])
    return parts if np.array_equal(np.sort(found), wanted) else None


def reader_of(services: Services, decode: Decode) -> Read:
    """Return what reads shards as they are stored; ``decode`` says what is in them."""

    def content_of(shard_id: str) -> bytes:
        with services.database.transaction() as session:
            blob_id = session.get_one(ShardRow, shard_id).blob_id
        with store_reachable():
            return services.blobs.read(blob_id)

    return lambda shard_id, wanted: decode(as_it_is_now(lambda: content_of(shard_id)), wanted)


def as_it_is_now(read: Callable[[], Result | None]) -> Result:
    """Return what is read of a shard; if an erasure rewrites it meanwhile, of the rewritten one.

    ``read`` returns None, or raises ``GoneError``, where the shard has changed.

    Raises:
        GoneError: it kept changing.
    """
    for _ in range(_ATTEMPTS):
        with suppress(GoneError):
            if (found := read()) is not None:
                return found
    raise GoneError("a shard of the dataset kept changing while it was read")


_ROWS_AT_ONCE = 4096


class Selected:
    """Records that are copied shard by shard into arrays of the final size, in a given order.

    Args:
        seqs: their sequence numbers, int64 [n], each once, in the order that they are to have.
        form: what they look like.
    """

    def __init__(self, seqs: NDArray[np.int64], form: InputForm) -> None:
        self._seqs = seqs
        self._order = np.argsort(seqs, kind="stable")
        self._ascending = seqs[self._order]
        self._form = form
        self._tensors = {
            name: np.empty((len(seqs), *shape), dtype=str(dtype).removeprefix("torch."))
            for name, (shape, dtype) in form.layout.items()
        }
        self._taken = np.zeros(len(seqs), dtype=bool)

    def take(self, part: Part) -> None:
        """Copy a shard's selected records.

        Raises:
            RunFailedError: the part's tensors are not those of the form.
        """
        if not len(part.seqs):
            return
        if part.tensors.keys() != self._tensors.keys():
            raise RunFailedError("records have other tensors than the task's")
        rows, found = places_of(part.seqs, self._ascending)
        places = self._order[found]
        self._taken[places] = True
        for name, stored in self._tensors.items():
            given = part.tensors[name]
            if math.prod(given.shape[1:]) != math.prod(stored.shape[1:]):
                raise RunFailedError(f"records have {name} of another shape than the task's")
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                some = slice(start, start + _ROWS_AT_ONCE)
                stored[places[some]] = given[rows[some]].reshape(-1, *stored.shape[1:])

    @property
    def is_complete(self) -> bool:
        """Whether all of the records were in the shards so far."""
        return bool(self._taken.all())

    def seqs(self) -> NDArray[np.int64]:
        """Return the sequence numbers of the copied records, in their order."""
        return self._seqs[self._taken]

    def examples(self) -> Examples:
        """Return the copied records."""
        return Examples.of(
            self._form,
            {
                name: each if self.is_complete else each[self._taken]
                for name, each in self._tensors.items()
            },
        )

"""A dataset's records as a model sees them: from all shards, or only from those that hold some."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import GoneError
from app.registry.datasets import repository as datasets
from app.registry.datasets.shards import read_groups
from app.registry.datasets.tables import ShardRow
from app.services import Services
from workers.seal.write_guard import store_reachable
from workers.training.part import Decode, Part, Wanted

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

    def content_of(shard_id: str, wanted: Wanted) -> bytes:
        with services.database.transaction() as session:
            blob_id = session.get_one(ShardRow, shard_id).blob_id
        return stored(services, blob_id, wanted)

    return lambda shard_id, wanted: decode(
        as_it_is_now(lambda: content_of(shard_id, wanted)), wanted
    )


def stored(services: Services, blob_id: str, wanted: Wanted) -> bytes:
    """Return the shard that a blob is; no part of it is decrypted that holds no wanted record.

    Raises:
        GoneError: the blob is shredded.
    """
    with store_reachable():
        if wanted is None:
            return services.blobs.read(blob_id)
        return read_groups(*services.blobs.parts(blob_id), wanted)


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

"""A dataset's records as a model sees them: from all shards, or only from those that hold some."""

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from app.datasets import repository as datasets
from app.datasets.shards import decode_shard
from app.datasets.tables import ShardRow
from app.domain.errors import GoneError
from app.services import Services
from workers.data.backbone import Backbone, FrozenBackbone
from workers.data.features import FeatureReader, Part

_ATTEMPTS = 5


def read_shards(
    services: Services,
    dataset_id: str,
    backbone: Backbone | None,
    *,
    check: Callable[[], None] = lambda: None,
) -> list[Part]:
    """Return every shard's seqs, labels and features, those of a frozen backbone if there is one.

    Args:
        services: database and blobs.
        dataset_id: of the records.
        backbone: of the model.
        check: called between batches of a backbone's work; its exceptions stop it.

    Raises:
        GoneError: a shard kept changing while it was read.
    """
    with services.database.transaction() as session:
        shard_ids = [shard.id for shard in datasets.shards(session, dataset_id) if shard.rows]
    read = _reader(services, dataset_id, backbone, check)
    return [read(shard_id) for shard_id in shard_ids]


def read_records(
    services: Services,
    dataset_id: str,
    backbone: Backbone | None,
    seqs: Collection[int],
    *,
    check: Callable[[], None] = lambda: None,
) -> list[Part] | None:
    """Return these records alone, from the shards that hold them; no other shard is read.

    Of one shard at a time there is more in memory than the records.

    Returns:
        None if one of them is not there: it was erased, or the ledger names another shard.

    Raises:
        GoneError: a shard kept changing while it was read.
    """
    wanted = np.array(sorted(seqs), dtype=np.int64)
    with services.database.transaction() as session:
        shard_ids = datasets.shards_of(session, dataset_id, wanted.tolist())
    read = _reader(services, dataset_id, backbone, check)
    parts = [_only(wanted, read(shard_id)) for shard_id in sorted(shard_ids)]
    found = np.concatenate([wanted[:0], *(part[0] for part in parts)])
    return parts if np.array_equal(np.sort(found), wanted) else None


def _reader(
    services: Services,
    dataset_id: str,
    backbone: Backbone | None,
    check: Callable[[], None],
) -> Callable[[str], Part]:
    """Return what reads a shard by its id."""
    if isinstance(backbone, FrozenBackbone):
        return FeatureReader(services, dataset_id, backbone, check=check).read
    return lambda shard_id: _read(services, shard_id)


def _read(services: Services, shard_id: str) -> Part:
    """Return a shard; if an erasure rewrites it meanwhile, the rewritten one."""
    for _ in range(_ATTEMPTS):
        with services.database.transaction() as session:
            blob_id = session.get_one(ShardRow, shard_id).blob_id
        try:
            return decode_shard(services.blobs.read(blob_id))
        except GoneError:
            continue
    raise GoneError("a shard of the dataset kept changing while it was read")


def _only(wanted: NDArray[np.int64], part: Part) -> Part:
    """Return a copy of the wanted rows of a part."""
    seqs, labels, features = part
    rows = np.flatnonzero(np.isin(seqs, wanted))
    return seqs[rows], labels[rows], features[rows]

"""The sums over exactly the retained records: from stored ones less what left, or from all.

Reading a forgotten record once, to subtract what it added, leaves the sums of a service that never
saw it. That is checked, not trusted: a record is subtracted only if it still has the digest that it
was added with. A backbone's features may have been computed again on another machine since, and
differ in the last bit. Then, and wherever something is missing, the sums are made anew.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.schema import FeatureSchema
from app.registry.statistics_file import StatisticsFile
from workers.data.features import Part
from workers.exact.statistics import CHUNK_ROWS, Statistics, one_hot, quantised


@dataclass(frozen=True)
class Quantiser:
    """From features to whole numbers.

    Attributes:
        schema: of the features.
        feature_range: of the head.
    """

    schema: FeatureSchema
    feature_range: float

    def numbers(self, features: NDArray[np.generic]) -> NDArray[np.int16]:
        """Return the whole numbers of some records' features, [n, size]."""
        return quantised(features, self.schema, self.feature_range)


@dataclass(frozen=True, eq=False)
class Summed:
    """Sums, and which records are in them.

    Attributes:
        statistics: the sums.
        seqs: int64 [n], ascending.
        digests: uint64 [n].
    """

    statistics: Statistics
    seqs: NDArray[np.int64]
    digests: NDArray[np.uint64]

    def to_file(self) -> StatisticsFile:
        """Return what is stored."""
        return StatisticsFile(self.seqs, self.digests, self.statistics.named())


def sums_over(parts: Sequence[Part], retained: frozenset[int], quantiser: Quantiser) -> Summed:
    """Return the sums over the retained records, made anew.

    Args:
        parts: of the dataset, with all retained records.
        retained: sequence numbers.
        quantiser: of the head.

    Raises:
        RunFailedError: a retained record is in no part, or in two.
    """
    wanted = np.array(sorted(retained), dtype=np.int64)
    summed = _over(parts, wanted, quantiser)
    if not np.array_equal(summed.seqs, wanted):
        raise RunFailedError("a record of the model is in no shard")
    return summed


def sums_less(
    parts: Sequence[Part],
    retained: frozenset[int],
    quantiser: Quantiser,
    stored: StatisticsFile,
) -> Summed | None:
    """Return stored sums less the records that left; None where that cannot be done.

    Args:
        parts: with the records that left; what else they hold is passed over.
        retained: sequence numbers.
        quantiser: of the head.
        stored: the sums of the version before.

    Raises:
        RunFailedError: a record that left is in two parts.
    """
    before = Statistics.from_named(stored.sums)
    fits = before is not None and (before.size, before.outputs) == (
        quantiser.schema.size,
        quantiser.schema.classes,
    )
    wanted = np.array(sorted(retained), dtype=np.int64)
    if before is None or not fits or not np.isin(wanted, stored.seqs).all():
        return None
    leaving = np.isin(stored.seqs, wanted, invert=True)
    gone = _over(parts, stored.seqs[leaving], quantiser)
    if not (
        np.array_equal(gone.seqs, stored.seqs[leaving])
        and np.array_equal(gone.digests, stored.digests[leaving])
    ):
        return None
    before.subtract(gone.statistics)
    return Summed(before, wanted, stored.digests[~leaving])


def _over(parts: Iterable[Part], wanted: NDArray[np.int64], quantiser: Quantiser) -> Summed:
    """Return the sums over those of the wanted records that the parts hold.

    Raises:
        RunFailedError: a record is in two places.
    """
    total = Statistics.none(quantiser.schema.size, quantiser.schema.classes)
    seqs, digests = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for chunk in _chunks(parts, wanted, quantiser):
        total.add(Statistics.over(chunk.features, one_hot(chunk.labels, quantiser.schema.classes)))
        seqs.append(chunk.seqs)
        digests.append(_digests(chunk.features, chunk.labels))
    found, order = np.unique(np.concatenate(seqs), return_index=True)
    if total.records != len(found):
        raise RunFailedError("a record of the model is stored twice")
    return Summed(total, found, np.concatenate(digests)[order])


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Records that one matrix product takes: seqs and labels [n], features [n, size]."""

    seqs: NDArray[np.int64]
    labels: NDArray[np.int64]
    features: NDArray[np.int16]


def _chunks(
    parts: Iterable[Part], wanted: NDArray[np.int64], quantiser: Quantiser
) -> Iterator[_Chunk]:
    """Yield the wanted records that the parts hold, a few records of each part together."""
    waiting: list[_Chunk] = []
    for part in parts:
        rows = np.flatnonzero(np.isin(part[0], wanted))
        for some in np.split(rows, range(CHUNK_ROWS, len(rows), CHUNK_ROWS)):
            if sum(len(chunk.seqs) for chunk in waiting) + len(some) > CHUNK_ROWS:
                yield _joined(waiting)
                waiting = []
            features = quantiser.numbers(part[2][some])
            waiting.append(_Chunk(part[0][some], part[1][some], features))
    if waiting:
        yield _joined(waiting)


def _joined(chunks: Sequence[_Chunk]) -> _Chunk:
    names = ("seqs", "labels", "features")
    return _Chunk(*(np.concatenate([getattr(each, name) for each in chunks]) for name in names))


def _digests(features: NDArray[np.int16], labels: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a digest of each row with its label."""
    digests = np.empty(len(features), dtype=np.uint64)
    for row, label in enumerate(labels.tolist()):
        digest = hashlib.blake2b(features[row], digest_size=8, salt=label.to_bytes(8))
        digests[row] = int.from_bytes(digest.digest())
    return digests

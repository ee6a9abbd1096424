"""The sums over exactly the retained records: from stored ones less what left, or from all.

Reading a forgotten record once, to subtract what it added, leaves the sums of a service that never
saw it. That is checked, not trusted: a record is subtracted only if it still has the digest that it
was added with. A backbone's features may have been computed again on another machine since, and
differ in the last bit. Then, and wherever something is missing, the sums are made anew.
"""

import hashlib
from collections.abc import Iterable, Sequence
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
    """From a shard's rows to whole numbers.

    Attributes:
        schema: of the features.
        feature_range: of the head.
    """

    schema: FeatureSchema
    feature_range: float

    def numbers(self, part: Part, rows: NDArray[np.intp]) -> tuple[NDArray[np.int16], ...]:
        """Return features and targets of some rows of a part."""
        features = quantised(part[2][rows], self.schema, self.feature_range)
        return features, one_hot(part[1][rows], self.schema.classes)


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


def sums_over(
    parts: Sequence[Part],
    retained: frozenset[int],
    quantiser: Quantiser,
    stored: StatisticsFile | None,
) -> Summed:
    """Return the sums over the retained records.

    Args:
        parts: of the dataset, with all retained records and usually those to subtract.
        retained: sequence numbers.
        quantiser: of the head.
        stored: the sums of the version before, if there are any.

    Raises:
        RunFailedError: a retained record is in no part.
    """
    wanted = np.array(sorted(retained), dtype=np.int64)
    if stored is not None:
        less = _without_those_that_left(parts, wanted, quantiser, stored)
        if less is not None:
            return less
    statistics, seqs, digests = _over(parts, wanted, quantiser)
    if len(seqs) != len(wanted):
        raise RunFailedError("a record of the model is in no shard")
    return Summed(statistics, seqs, digests)


def _without_those_that_left(
    parts: Sequence[Part],
    wanted: NDArray[np.int64],
    quantiser: Quantiser,
    stored: StatisticsFile,
) -> Summed | None:
    """Return stored sums less the records that left; None where that cannot be done."""
    before = Statistics.from_named(stored.sums)
    fits = before is not None and (before.size, before.outputs) == (
        quantiser.schema.size,
        quantiser.schema.classes,
    )
    if before is None or not fits or not np.isin(wanted, stored.seqs).all():
        return None
    leaving = np.setdiff1d(stored.seqs, wanted)
    gone, seqs, digests = _over(parts, leaving, quantiser)
    added = stored.digests[np.isin(stored.seqs, leaving)]
    if not (np.array_equal(seqs, leaving) and np.array_equal(digests, added)):
        return None
    before.subtract(gone)
    return Summed(before, wanted, stored.digests[np.isin(stored.seqs, wanted)])


def _over(
    parts: Iterable[Part], wanted: NDArray[np.int64], quantiser: Quantiser
) -> tuple[Statistics, NDArray[np.int64], NDArray[np.uint64]]:
    """Return the sums over the wanted records that the parts hold, with seqs and digests.

    Raises:
        RunFailedError: a record is in two places.
    """
    total = Statistics.none(quantiser.schema.size, quantiser.schema.classes)
    seqs, digests = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for part in parts:
        rows = np.flatnonzero(np.isin(part[0], wanted))
        if not len(rows):
            continue
        seqs.append(part[0][rows])
        for some in np.split(rows, range(CHUNK_ROWS, len(rows), CHUNK_ROWS)):
            features, targets = quantiser.numbers(part, some)
            total.add(Statistics.over(features, targets))
            digests.append(_digests(features, part[1][some]))
    found, order = np.unique(np.concatenate(seqs), return_index=True)
    if total.records != len(found):
        raise RunFailedError("a record of the model is stored twice")
    return total, found, np.concatenate(digests)[order]


def _digests(features: NDArray[np.int16], labels: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a digest of each row with its label."""
    digests = np.empty(len(features), dtype=np.uint64)
    for row, label in enumerate(labels.tolist()):
        digest = hashlib.blake2b(features[row], digest_size=8, salt=label.to_bytes(8))
        digests[row] = int.from_bytes(digest.digest())
    return digests

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
from app.domain.schema import InputSchema
from app.registry.statistics_file import StatisticsFile
from workers.training.exact.statistics import (
    CHUNK_ROWS,
    Statistics,
    Targets,
    known_targets,
    quantised,
)
from workers.training.part import Part, places_of
from workers.training.tasks.task import INPUTS, TARGET


@dataclass(frozen=True)
class Quantiser:
    """From features and targets to whole numbers.

    Attributes:
        schema: of the features.
        feature_range: of the head.
        targets: of the task.
    """

    schema: InputSchema
    feature_range: float
    targets: Targets


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


def sums_over(parts: Iterable[Part], retained: NDArray[np.int64], quantiser: Quantiser) -> Summed:
    """Return the sums over the retained records, made anew.

    Args:
        parts: of the dataset, with all retained records.
        retained: sequence numbers, ascending.
        quantiser: of the head.

    Raises:
        RunFailedError: a retained record is in no part, or in two.
    """
    summed = _over(parts, retained, quantiser)
    if not np.array_equal(summed.seqs, retained):
        raise RunFailedError("a record of the model is in no shard")
    return summed


def sums_less(
    parts: Sequence[Part],
    retained: NDArray[np.int64],
    quantiser: Quantiser,
    stored: StatisticsFile,
) -> Summed | None:
    """Return stored sums less the records that left; None where that cannot be done.

    Args:
        parts: with the records that left; what else they hold is passed over.
        retained: sequence numbers, ascending.
        quantiser: of the head.
        stored: the sums of the version before.

    Raises:
        RunFailedError: a record that left is in two parts.
    """
    before = Statistics.from_named(stored.sums)
    fits = before is not None and (before.size, before.outputs) == (
        quantiser.schema.size,
        quantiser.targets.task.outputs,
    )
    if before is None or not fits or not np.isin(retained, stored.seqs).all():
        return None
    leaving = np.isin(stored.seqs, retained, invert=True)
    gone = _over(parts, stored.seqs[leaving], quantiser)
    if not (
        np.array_equal(gone.seqs, stored.seqs[leaving])
        and np.array_equal(gone.digests, stored.digests[leaving])
    ):
        return None
    before.subtract(gone.statistics)
    return Summed(before, retained, stored.digests[~leaving])


def _over(parts: Iterable[Part], wanted: NDArray[np.int64], quantiser: Quantiser) -> Summed:
    """Return the sums over those of the wanted records that the parts hold.

    One without a target adds nothing, and is among them.

    Raises:
        RunFailedError: a record is in two places.
    """
    total = Statistics.none(quantiser.schema.size, quantiser.targets.task.outputs)
    seqs, digests = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for chunk in _chunks(parts, wanted, quantiser):
        features, known = chunk.tensors[INPUTS], known_targets(chunk.tensors[TARGET])
        targets = np.zeros((len(known), quantiser.targets.task.outputs), dtype=np.int16)
        targets[known] = quantiser.targets.numbers(chunk.tensors[TARGET][known])
        features = np.where(known[:, None], features, np.int16(0))
        total.add(Statistics.over(features[known], targets[known]))
        seqs.append(chunk.seqs)
        digests.append(_digests(features, targets))
    found, order = np.unique(np.concatenate(seqs), return_index=True)
    if sum(map(len, seqs)) != len(found):
        raise RunFailedError("a record of the model is stored twice")
    return Summed(total, found, np.concatenate(digests)[order])


def _chunks(
    parts: Iterable[Part], wanted: NDArray[np.int64], quantiser: Quantiser
) -> Iterator[Part]:
    """Yield the wanted records, as many as one matrix product takes, with whole numbers."""
    waiting: list[Part] = []
    for part in parts:
        rows, _ = places_of(part.seqs, wanted)
        if not len(rows):
            continue
        inputs, targets = part.tensors[INPUTS], part.tensors[TARGET]
        for some in np.split(rows, range(CHUNK_ROWS, len(rows), CHUNK_ROWS)):
            if sum(len(chunk.seqs) for chunk in waiting) + len(some) > CHUNK_ROWS:
                yield _joined(waiting)
                waiting = []
            numbers = quantised(inputs[some], quantiser.schema, quantiser.feature_range)
            waiting.append(Part(part.seqs[some], {INPUTS: numbers, TARGET: targets[some]}))
    if waiting:
        yield _joined(waiting)


def _joined(parts: Sequence[Part]) -> Part:
    names = (INPUTS, TARGET)
    tensors = {name: np.concatenate([each.tensors[name] for each in parts]) for name in names}
    return Part(np.concatenate([each.seqs for each in parts]), tensors)


def _digests(features: NDArray[np.int16], targets: NDArray[np.int16]) -> NDArray[np.uint64]:
    """Return a digest of each record's whole numbers, which are all that is in the sums of it.

    It is their product with random numbers, modulo 2^64 (multilinear hashing). Two numbers that
    differ do so by at most 15 factors of two, so that records with other numbers have the same
    digest with a probability of at most 2^-49.
    """
    numbers = np.concatenate([features, targets.reshape(len(features), -1)], axis=1)
    drawn = hashlib.shake_256(b"digest of a record").digest(8 * numbers.shape[1])
    digests: NDArray[np.int64] = numbers.astype(np.int64) @ np.frombuffer(drawn, dtype="<i8")
    return digests.view(np.uint64)

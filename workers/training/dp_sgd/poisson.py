"""Poisson sampling: every record joins a step independently and unpredictably."""

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

_CHUNK: Final = 1 << 17  # records decided at a time: 1 MB of random words stays in the cache


def poisson_sample(records: int, rate: float) -> NDArray[np.int64]:
    """Return the indices, in order, of the records sampled for one step; may be empty.

    Each record is sampled independently, if a fresh 64-bit word from the operating system's
    generator is below ``rate`` * 2^64. This rounds ``rate`` down by less than 2^-64.

    Args:
        records: number of records.
        rate: probability of each, above 0 and at most 1.
    """
    if rate == 1:
        return np.arange(records)
    threshold = np.uint64(int(rate * 2.0**64))
    taken = [
        first + np.flatnonzero(_words(min(_CHUNK, records - first)) < threshold)
        for first in range(0, records, _CHUNK)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *taken])


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

"""The records that a run may use, copied out of a dataset's shards."""

import math

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from workers.training.examples import Examples
from workers.training.forms import InputForm
from workers.training.part import Part, places_of

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

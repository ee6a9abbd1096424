"""The records of a run in a process that does not hold them: it gets its rows of every batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import SealedStateError
from workers.data.examples import Examples, Pieces, batch_sizes
from workers.data.forms import FeatureForm
from workers.tasks.task import Batch


@dataclass(frozen=True)
class Elsewhere:
    """Records that only the leading process reads: how many they are, and what they look like."""

    records: int
    form: FeatureForm

    def __len__(self) -> int:
        return self.records

    def like(self, count: int) -> Examples:
        """Return random records of the same form, the same each time."""
        return Examples(self.form.random(count), self.form)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many batches an epoch has."""
        return len(batch_sizes(self.records, batch_size))

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:  # noqa: ARG002
        """Yield nothing: the leading process reads them."""
        return iter(())

    def forever(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:  # noqa: ARG002
        """Yield nothing: ``Team.deal`` yields what the leading process sends."""
        return iter(())

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:  # noqa: ARG002
        """Yield nothing."""
        return iter(())

    def cut(self, order: NDArray[np.int64], sizes: Sequence[int]) -> Pieces:  # noqa: ARG002
        """Refuse.

        Raises:
            SealedStateError: always: fixed batches are not divided.
        """
        raise SealedStateError("a model with fixed batches is trained by one process")

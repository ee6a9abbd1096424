"""The records of a run in a process that does not hold them: it gets its rows of every batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from app.domain.errors import SealedStateError
from workers.data.examples import Order, Records
from workers.data.forms import FeatureForm
from workers.tasks.task import Batch


@dataclass(frozen=True)
class Elsewhere(Records):
    """Records that only the leading process reads: how many they are, and what they look like."""

    records: int
    form: FeatureForm

    def __len__(self) -> int:
        return self.records

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:  # noqa: ARG002
        """Yield nothing: ``Team.deal`` yields what the leading process sends."""
        return iter(())

    forever = in_order = epoch

    def cycle(
        self,
        order: Order,  # noqa: ARG002
        sizes: Sequence[int],  # noqa: ARG002
        first: int,  # noqa: ARG002
        *,
        device: torch.device,  # noqa: ARG002
    ) -> Iterator[Batch]:
        """Refuse.

        Raises:
            SealedStateError: always: fixed batches are not divided.
        """
        raise SealedStateError("a model with fixed batches is trained by one process")

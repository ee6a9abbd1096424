"""Examples in memory, and random minibatches of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Examples:
    """Records as tensors; each batch is converted as it is needed.

    A network sees ``(raw - offset) * scale`` in float32, as the dataset's schema declares.

    Attributes:
        features: float32 or uint8 [n, *shape], raw.
        labels: int64 [n], 0 or above.
        offset, scale: public constants.

    Raises:
        RunFailedError: features and labels do not match.
    """

    features: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.features.dtype not in (torch.float32, torch.uint8) or self.features.dim() < 2:
            raise RunFailedError("features must be float32 or uint8, one row per record")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.features.shape[:1]:
            raise RunFailedError("labels must be int64, one per record")

    @classmethod
    def from_arrays(
        cls,
        features: NDArray[Any],
        labels: NDArray[Any],
        *,
        offset: float = 0.0,
        scale: float = 1.0,
    ) -> "Examples":
        """Convert NumPy arrays to examples: uint8 stays uint8, other numbers become float32."""
        if features.dtype != np.uint8:
            features = features.astype(np.float32, copy=False)
        return cls(
            features=torch.from_numpy(np.ascontiguousarray(features)),
            labels=torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64)),
            offset=offset,
            scale=scale,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.features.device

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record's features."""
        return tuple(self.features.shape[1:])

    def to(self, device: torch.device) -> "Examples":
        """Return the same examples on ``device``."""
        return Examples(self.features.to(device), self.labels.to(device), self.offset, self.scale)

    def select(self, index: NDArray[np.int64]) -> "Examples":
        """Return the examples at ``index``, copied."""
        chosen = torch.from_numpy(index).to(self.device)
        return Examples(self.features[chosen], self.labels[chosen], self.offset, self.scale)

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return how many batches ``epoch`` yields."""
        return len(_batch_sizes(len(self), batch_size))

    def epoch(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every example once, in a random order from the operating system's entropy.

        Batch sizes differ by at most one. No batch has a single example, which BatchNorm cannot
        process, unless ``batch_size`` is 1 or there is only one example; to avoid it, a batch may
        exceed ``batch_size`` by one.

        Raises:
            RunFailedError: there are no examples.
        """
        if len(self) == 0:
            raise RunFailedError("no records are left to train on: add records to the dataset")
        order = np.random.default_rng().permutation(len(self))
        index = torch.from_numpy(order).to(self.device)
        for chosen in torch.split(index, _batch_sizes(len(self), batch_size)):
            yield self._batch(chosen, device)

    def forever(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield epochs without end."""
        while True:
            yield from self.epoch(batch_size, device=device)

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every example once, in the stored order."""
        for chosen in torch.split(torch.arange(len(self), device=self.device), batch_size):
            yield self._batch(chosen, device)

    def rows(self, start: int, end: int, *, device: torch.device) -> Batch:
        """Return the examples from ``start`` up to, not including, ``end``, in stored order."""
        return self._batch(slice(start, end), device)

    def _batch(self, chosen: torch.Tensor | slice, device: torch.device) -> Batch:
        features = self.features[chosen].to(device).to(torch.float32)
        if self.offset != 0.0:
            features = features - self.offset
        if self.scale != 1.0:
            features = features * self.scale
        return features, self.labels[chosen].to(device)


def _batch_sizes(examples: int, batch_size: int) -> list[int]:
    batches = -(-examples // batch_size)
    if batch_size > 1 and batches > 1 and examples // batches < 2:
        batches -= 1
    smaller, larger = divmod(examples, batches) if batches else (0, 0)
    return [smaller + 1] * larger + [smaller] * (batches - larger)

"""Examples in memory, and random minibatches of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.schema import FeatureSchema

Batch = tuple[torch.Tensor, torch.Tensor]
_NUMBERS = (torch.float32, torch.uint8)
_TOKENS = (torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Examples:
    """Records as tensors; each batch is converted as it is needed.

    A network sees ``(raw - offset) * scale`` in float32, as the dataset's schema declares, and
    tokens in int64.

    Attributes:
        features: float32 or uint8 [n, *shape], raw; of tokens, int32 or int64.
        labels: int64 [n], 0 or above.
        offset, scale: public constants.
        vocabulary: tokens are below it; None for features that are not tokens.

    Raises:
        RunFailedError: features and labels do not match.
    """

    features: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    offset: float = 0.0
    scale: float = 1.0
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        dtypes = _NUMBERS if self.vocabulary is None else _TOKENS
        if self.features.dtype not in dtypes or self.features.dim() < 2:
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise RunFailedError(f"features must be {names}, one row per record")
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
        vocabulary: int | None = None,
    ) -> "Examples":
        """Convert arrays to examples: uint8 and tokens stay, other numbers become float32."""
        if features.dtype != np.uint8 and vocabulary is None:
            features = features.astype(np.float32, copy=False)
        return cls(
            features=torch.from_numpy(np.ascontiguousarray(features)),
            labels=torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64)),
            offset=offset,
            scale=scale,
            vocabulary=vocabulary,
        )

    @classmethod
    def of_schema(
        cls, features: NDArray[Any], labels: NDArray[Any], schema: FeatureSchema
    ) -> "Examples":
        """Return the records of a dataset; ``features`` has shape [n, size] or [n, *shape]."""
        return cls.from_arrays(
            features.reshape(-1, *schema.shape),
            labels,
            offset=schema.offset,
            scale=schema.scale,
            vocabulary=schema.vocabulary,
        )

    @classmethod
    def random(cls, schema: FeatureSchema, count: int) -> "Examples":
        """Return random records of a schema, the same each time."""
        empty = np.empty((0, *schema.shape), dtype=schema.dtype)
        return cls.of_schema(empty, np.empty(0, dtype=np.int64), schema).like(count)

    def like(self, count: int) -> "Examples":
        """Return random records of the same form, the same each time; no record is looked at.

        Tokens and bytes are uniform; other numbers reach the network as standard normal ones.
        """
        generator = torch.Generator().manual_seed(0)
        shape = (count, *self.input_shape)
        if self.features.dtype in (torch.uint8, *_TOKENS):
            high = 256 if self.vocabulary is None else self.vocabulary
            features = torch.randint(high, shape, generator=generator).to(self.features.dtype)
        else:
            features = torch.randn(shape, generator=generator) / self.scale + self.offset
        return self._with(features.to(self.device), self.labels.new_zeros(count))

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
        return self._with(self.features.to(device), self.labels.to(device))

    def select(self, index: NDArray[np.int64]) -> "Examples":
        """Return the examples at ``index``, copied."""
        chosen = torch.from_numpy(index).to(self.device)
        return self._with(self.features[chosen], self.labels[chosen])

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

    def _with(self, features: torch.Tensor, labels: torch.Tensor) -> "Examples":
        return replace(self, features=features, labels=labels)

    def _batch(self, chosen: torch.Tensor | slice, device: torch.device) -> Batch:
        seen = torch.float32 if self.vocabulary is None else torch.int64
        features = self.features[chosen].to(device).to(seen)
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

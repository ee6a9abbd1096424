"""What records look like: a tensor of numbers or tokens each, and what a task needs beside it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import torch

from app.domain.errors import RunFailedError
from app.domain.schema import InputSchema
from workers.training.tasks.task import INPUTS, TARGET, Batch

_NUMBERS: Final = (torch.float32, torch.uint8)
_TOKENS: Final = (torch.int32, torch.int64)
_CLASS: Final = {TARGET: torch.zeros(1, dtype=torch.int64)}


@dataclass(frozen=True, eq=False)
class InputForm:
    """A network sees ``(raw - offset) * scale`` in float32, and tokens in int64.

    Attributes:
        shape: of one record's inputs.
        dtype: of the inputs as they are stored: float32 or uint8; of tokens, int32 or int64.
        samples: made-up values of the other tensors, [m, …] each, and of the inputs, if random
            ones would make no sense; without any, a class.
        offset, scale: public constants.
        vocabulary: tokens are below it; None for inputs that are not tokens.

    Raises:
        RunFailedError: inputs of this type cannot be read.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    samples: Mapping[str, torch.Tensor] = field(default_factory=lambda: dict(_CLASS), repr=False)
    offset: float = 0.0
    scale: float = 1.0
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        dtypes = _NUMBERS if self.vocabulary is None else _TOKENS
        if self.dtype not in dtypes or not self.shape:
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise RunFailedError(f"features must be {names}, one row per record")

    @property
    def advice(self) -> str:
        """Return what a network that fails on them must do."""
        if self.vocabulary is not None:
            return f"its embedding must take tokens from 0 to {self.vocabulary - 1}"
        return "it must train on a batch of records, on the worker's device"

    @property
    def layout(self) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """The shape of one record's tensors, and their types, by name."""
        others = {name: (tuple(each.shape[1:]), each.dtype) for name, each in self.samples.items()}
        return {INPUTS: (self.shape, self.dtype)} | others

    @property
    def record_bytes(self) -> int:
        """How many bytes of memory a record takes."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.layout.values())

    @classmethod
    def of(cls, schema: InputSchema, samples: Mapping[str, torch.Tensor] | None = None) -> Self:
        """Return the form of a schema's records; floats are stored as float32."""
        kept = schema.tokens or schema.dtype == "uint8"
        return cls(
            shape=schema.shape,
            dtype=getattr(torch, schema.dtype) if kept else torch.float32,
            samples=dict(_CLASS if samples is None else samples),
            offset=schema.offset,
            scale=schema.scale,
            vocabulary=schema.vocabulary,
        )

    def seen(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return inputs converted; other tensors are seen as they are stored."""
        if name != INPUTS:
            return tensor
        if self.vocabulary is not None:
            return tensor.to(torch.int64)
        inputs = tensor.to(torch.float32)
        if self.offset != 0.0:
            inputs = inputs - self.offset
        if self.scale != 1.0:
            inputs = inputs * self.scale
        return inputs

    def random(self, count: int) -> Batch:
        """Return made-up records, the same each time.

        Inputs without samples: bytes and tokens are uniform, other numbers standard normal as seen.
        """
        cycled = torch.arange(count)
        batch = {name: each[cycled % len(each)] for name, each in self.samples.items()}
        return {INPUTS: self._random_inputs(count)} | batch

    def _random_inputs(self, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        shape = (count, *self.shape)
        if self.vocabulary is not None or self.dtype == torch.uint8:
            high = 256 if self.vocabulary is None else self.vocabulary
            return torch.randint(high, shape, generator=generator).to(self.dtype)
        return torch.randn(shape, generator=generator) / self.scale + self.offset


def fainter(features: torch.Tensor) -> torch.Tensor:
    """Return records of a smaller range: a network that keeps a maximum has it from others."""
    return features / 4 if features.is_floating_point() else features // 2

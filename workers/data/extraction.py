"""Features that depend on one record alone, to the last bit.

BLAS and cuDNN choose kernels by the size of a batch, by the number of threads and by what is
fastest, and each rounds in its own way. So every batch has one size, one thread computes, and no
kernel is chosen by measuring.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

from workers.training.exact.arithmetic import repeatable
from workers.training.examples import Examples
from workers.training.tasks.task import INPUTS

_RECORDS_AT_ONCE: Final = 32


@contextmanager
def _deterministic() -> Iterator[None]:
    """Compute in one thread, in full float32, with kernels that always round alike."""
    # Read by PyTorch when it is asked for deterministic algorithms on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    reduced = torch.backends.cuda.matmul.allow_tf32
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with (
            torch.no_grad(),
            repeatable(),
            torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=False),
        ):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = reduced
        torch.use_deterministic_algorithms(mode=before)


class Extraction:
    """A network's features, in batches of one size: the last one is filled up with zeros.

    Args:
        network: maps [n, *input_shape] to features [n, size], in evaluation mode.
        device: where it is.
        alone: whether each record must be computed by itself.
    """

    def __init__(self, network: nn.Module, *, device: torch.device, alone: bool = False) -> None:
        self._network = network
        self._device = device
        self._at_once = 1 if alone else None

    def batches(self, examples: Examples) -> Iterator[torch.Tensor]:
        """Yield the features in order, float32 [n, size] on the CPU."""
        start = 0
        while start < len(examples):
            with _deterministic():  # not while the caller has the batch
                if self._at_once is None:
                    self._at_once = self._size(examples)
                inputs = self._inputs(examples, start, start + self._at_once)
                features = self._computed(inputs)[: len(examples) - start]
            yield features
            start += self._at_once

    def _size(self, examples: Examples) -> int:
        """Return how many records to compute at once: one by one, if places in a batch matter.

        Random records tell: each is computed in two places, beside others.
        """
        probe = self._inputs(examples.like(_RECORDS_AT_ONCE), 0, _RECORDS_AT_ONCE)
        features = self._computed(probe)
        moved = self._computed(probe.roll(1, dims=0)).roll(-1, dims=0)
        probe[1:] = 0
        alone = self._computed(probe)
        same = torch.equal(features, moved) and torch.equal(features[0], alone[0])
        return _RECORDS_AT_ONCE if same else 1

    def _inputs(self, examples: Examples, start: int, end: int) -> torch.Tensor:
        inputs = examples.rows(start, min(end, len(examples)), device=self._device)[INPUTS]
        padding = inputs.new_zeros((end - start - len(inputs), *inputs.shape[1:]))
        return torch.cat([inputs, padding])

    def _computed(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self._network(inputs)
        return features.to("cpu", torch.float32)

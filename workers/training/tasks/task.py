"""A task: what a model is to learn from encoded records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from numpy.typing import NDArray

Batch = dict[str, torch.Tensor]
"""Tensors of records by name, each [n, …]; row i is of record i alone."""
Arrays = Mapping[str, NDArray[Any]]
"""The same of many records, in NumPy."""
Forward = Callable[..., Any]
"""A network: a module, or one whose arithmetic is chosen around it."""

INPUTS: Final = "inputs"
TARGET: Final = "target"
WEIGHT: Final = "weight"


class Task(Protocol):
    """What is to be learned."""

    @property
    def headline(self) -> str:
        """Return the name of the metric that is shown first."""

    @property
    def higher_is_better(self) -> bool | None:
        """Return which way that metric is better; None where nobody knows."""

    def augment(self, batch: Batch) -> Batch:
        """Return what a step of training sees of a batch, which may be random variants."""

    def loss(self, module: Forward, batch: Batch) -> torch.Tensor:
        """Return the loss of each record, [n], differentiable."""

    def predict(self, module: Forward, batch: Batch) -> Batch:
        """Return what a user wants to know of each record: tensors [n, …] by name."""

    def metrics(self, predictions: Arrays, batch: Arrays) -> dict[str, float]:
        """Return figures of many records' predictions; one that is not defined is left out."""

    def truth(self, batch: Batch) -> Batch:
        """Return what of a batch ``metrics`` and ``baseline`` look at, [m, …] by name."""

    def measured(self, batch: Batch) -> Batch:
        """Return the records of a batch that a metric or a mean loss is of: with a target."""

    def baseline(self, batch: Arrays) -> float | None:
        """Return what one answer for all of the records has of the first metric; None if nothing.

        It is the answer that suits these very records best, so it needs no other ones.
        """


def joined(batches: Sequence[Batch]) -> Batch:
    """Return several batches as one."""
    return {name: torch.cat([each[name] for each in batches]) for name in batches[0]}


def weighted(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the losses [n] times the records' weights, if they have any."""
    return losses * batch[WEIGHT] if WEIGHT in batch else losses

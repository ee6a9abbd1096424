"""Whether a network remembers records from one batch to the next, wherever it keeps them.

Lists, numbers, globals and closures cannot be searched for records, but what a network computes
shows whether they matter: the same records, after others, must give the same.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import nn

from workers.training.evaluate import evaluating
from workers.training.forms import fainter
from workers.training.tasks.task import INPUTS, Batch, Task
from workers.training.vectors import pieces

_SEED: Final = 5
# Kernels of a GPU may add in another order each time.
_TOLERANCES: Final = {"cpu": 1e-5}
_TOLERANCE: Final = 1e-3


def remembers(compute: Callable[[Batch], torch.Tensor], batch: Batch) -> bool:
    """Return whether a network computes something else of fainter records after it saw a batch.

    Args:
        compute: what the network makes of a batch; it may overwrite its last answer.
        batch: random records.
    """
    faint = batch | {INPUTS: fainter(batch[INPUTS])}
    with _seeded():
        before = compute(faint).clone()
    with _seeded():
        compute(batch)
    with _seeded():
        return not _alike(compute(faint), before)


def evaluated(module: nn.Module, task: Task) -> Callable[[Batch], torch.Tensor]:
    """Return what computes a batch's losses in evaluation mode."""

    def compute(batch: Batch) -> torch.Tensor:
        with evaluating(module):
            return task.loss(module, batch)

    return compute


@contextmanager
def _seeded() -> Iterator[None]:
    """Draw the same numbers from the process's generators each time; torch's are the caller's."""
    torch.manual_seed(_SEED)
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 - for networks that use it
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


def _alike(now: torch.Tensor, before: torch.Tensor) -> bool:
    if now.shape != before.shape:
        return False
    parts = list(pieces(now.detach().reshape(-1), before.detach().reshape(-1)))
    sizes = [float(then.abs().nan_to_num(posinf=0.0).max()) for _, then in parts if len(then)]
    tolerance = max(sizes, default=0.0) * _TOLERANCES.get(before.device.type, _TOLERANCE)
    return all(
        torch.allclose(here, then, rtol=0.0, atol=tolerance, equal_nan=True) for here, then in parts
    )

"""The rule of ``app.planning.mechanisms.exact_training``: the minimum over the retained records."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import RunFailedError
from app.domain.tasks.spec import TaskSpec
from app.planning.mechanisms.exact_training import ExactTraining
from workers.data.loading import RunData
from workers.training.exact.arithmetic import repeatable
from workers.training.exact.minimum import Minimum, loss_of, minimise
from workers.training.examples import Records
from workers.training.networks.heads import LinearHead
from workers.training.networks.network import Network
from workers.training.tasks.task import INPUTS, Batch, joined

MOST_PASSES: Final = 5000
_NUMBERS_AT_ONCE: Final = 2**15  # fit into a processor's cache


def solve(mechanism: ExactTraining, network: Network, data: RunData, task: TaskSpec) -> None:
    """Train a linear head to its tolerance, over the records in the order of their arrival.

    Raises:
        RunFailedError: the network is not a linear head, or the task not for one, there are no
            records, or the tolerance is too small for them.
    """
    head = network.module
    if not isinstance(head, LinearHead):
        raise RunFailedError("exact training needs a linear_head")
    found = minimum(mechanism, head, data.retain, task)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(found.weight))


def minimum(
    mechanism: ExactTraining, head: LinearHead, examples: Records, task: TaskSpec
) -> Minimum:
    """Return the weights of a head of this shape for these records; raises as ``solve`` does."""
    bounds = task.bounds
    if bounds is None:
        raise RunFailedError(f"a linear_head has no minimum for {task.name}")
    features, others = scaled(head, examples)
    return minimise(
        features,
        loss_of(task, others),
        weight_decay=mechanism.regularisation,
        smoothness=bounds.smoothness,
        tolerance=mechanism.tolerance,
        most_evaluations=MOST_PASSES,
    )


def scaled(
    head: LinearHead, examples: Records
) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Return the features of norm at most 1 that the head sees, [n, columns], and all else."""
    features = np.empty((len(examples), head.weight.shape[1]), dtype=np.float64)
    others: list[Batch] = []
    done = 0
    with repeatable():
        at_once = max(1, _NUMBERS_AT_ONCE // features.shape[1])
        for batch in examples.in_order(at_once, device=torch.device("cpu")):
            inputs = batch.pop(INPUTS)
            features[done : done + len(inputs)] = head.scaled(inputs).numpy()
            done += len(inputs)
            others.append(batch)
    if not others:
        raise RunFailedError("no record is left to learn from")
    return features, {name: each.numpy() for name, each in joined(others).items()}

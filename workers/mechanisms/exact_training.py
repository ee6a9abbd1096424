"""The rule of ``app.planning.mechanisms.exact_training``: the minimum over the retained records."""

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain import linear_head
from app.domain.errors import RunFailedError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.exact_training import ExactTraining
from workers.data.loading import RunData
from workers.exact import softmax
from workers.exact.arithmetic import repeatable
from workers.exact.softmax import Minimum
from workers.training.data import Examples
from workers.training.linear_head import LinearHead
from workers.training.network import Network

MOST_PASSES: Final = 5000
_NUMBERS_AT_ONCE: Final = 2**15  # fit into a processor's cache


@dataclass(frozen=True)
class HeadTrainer:
    """Trains a linear head to its tolerance, over the records in the order of their arrival."""

    mechanism: ExactTraining

    def solve(self, network: Network, data: RunData) -> None:
        """Set the weights.

        Raises:
            RunFailedError: the network is no linear head, there are no records, or the tolerance is
                too small for them.
        """
        head = network.module
        if not isinstance(head, LinearHead):
            raise RunFailedError("exact training needs a linear_head")
        minimum = self.minimum(head, data.retain)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(minimum.weight))

    def minimum(self, head: LinearHead, examples: Examples) -> Minimum:
        """Return the weights of a head of this shape for these records.

        Raises:
            RunFailedError: there are no records, or the tolerance is too small for them.
        """
        classes = max(2, len(head.weight))
        return softmax.minimise(
            scaled(head, examples),
            examples.labels.numpy(),
            classes=classes,
            weight_decay=self.mechanism.regularisation,
            smoothness=linear_head.smoothness(classes),
            tolerance=self.mechanism.tolerance,
            most_evaluations=MOST_PASSES,
        )


def scaled(head: LinearHead, examples: Examples) -> NDArray[np.float64]:
    """Return the features of norm at most 1 that the head sees, [n, columns]."""
    features = np.empty((len(examples), head.weight.shape[1]), dtype=np.float64)
    done = 0
    with repeatable():
        at_once = max(1, _NUMBERS_AT_ONCE // features.shape[1])
        for inputs, _ in examples.in_order(at_once, device=torch.device("cpu")):
            features[done : done + len(inputs)] = head.scaled(inputs).numpy()
            done += len(inputs)
    return features


def from_plan(plan: Plan) -> HeadTrainer:
    """Return the trainer of a plan.

    Raises:
        ParameterError: a parameter is missing or unknown.
    """
    return HeadTrainer(cast("ExactTraining", mechanism_of(plan)))

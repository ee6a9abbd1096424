"""One member: trained anew on retained records of its own, sealed by itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import nn

from app.domain.plan import Plan
from workers.data.examples import Examples
from workers.data.loading import ModelSpec
from workers.networks.network import Network
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.device import choose_device

Numbers = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A member after its training.

    Attributes:
        tensors: by its own names.
        learned: the names of those that training changes, sorted.
    """

    tensors: Numbers
    learned: tuple[str, ...]


def train_member(
    model: ModelSpec,
    plan: Plan,
    examples: Examples,
    fresh: Callable[[], nn.Module],
    on_progress: SealedProgress,
) -> Trained:
    """Train a member from nothing, or from public weights.

    A member that has no record left stays untrained, as a training on no record ends.

    Raises:
        RunFailedError: training diverged.
    """
    if not len(examples):
        network = Network(fresh, device=choose_device(), task=model.task)
        return Trained(network.tensors(), tuple(network.flat.shapes))
    sealed = Sealed(
        fresh, epsilon=plan.epsilon, delta=plan.delta, device=choose_device(), task=model.task
    )
    try:
        sealed.train(examples, model.recipe, epochs=model.recipe.epochs, on_progress=on_progress)
        sealed.retrained()
        certified = sealed.open()
        return Trained(certified.tensors(), certified.trained)
    finally:
        sealed.destroy()

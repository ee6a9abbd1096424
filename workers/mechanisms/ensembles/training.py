"""One member: trained anew on retained records of its own, sealed by itself."""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray
from torch import nn

from app.domain.plan import Plan
from workers.data.loading import ModelSpec
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.team import choose_device

Numbers = Mapping[str, NDArray[Any]]


def train_member(
    model: ModelSpec,
    plan: Plan,
    examples: Examples,
    fresh: Callable[[], nn.Module],
    on_progress: SealedProgress,
) -> Numbers:
    """Train a member from nothing, or from public weights; return its tensors by their names.

    A member that has no record left stays untrained, as a training on no record ends.

    Raises:
        RunFailedError: training diverged.
    """
    if not len(examples):
        return Network(fresh, device=choose_device(), task=model.task).tensors()
    sealed = Sealed(
        fresh, epsilon=plan.epsilon, delta=plan.delta, device=choose_device(), task=model.task
    )
    try:
        sealed.train(examples, model.recipe, epochs=model.recipe.epochs, on_progress=on_progress)
        sealed.retrained()
        return sealed.open().tensors()
    finally:
        sealed.destroy()

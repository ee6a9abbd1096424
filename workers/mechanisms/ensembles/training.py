"""One member: trained anew on retained records of its own, sealed by itself."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import nn

from app.domain.plan import Plan
from app.domain.provenance import Provenance
from workers.data.loading import ModelSpec
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.seed import Seed
from workers.training.team import choose_device

Numbers = Mapping[str, NDArray[Any]]


class Trained(NamedTuple):
    """A member: its tensors by their names, and what it can be computed again from, if it can."""

    tensors: Numbers
    provenance: Provenance | None


def train_member(
    model: ModelSpec,
    plan: Plan,
    examples: Examples,
    fresh: Callable[[], nn.Module],
    on_progress: SealedProgress = lambda *_: None,
    seed: Seed | None = None,
) -> Trained:
    """Train a member from nothing, or from public weights, with a seed of its own or a known one.

    A member that has no record left stays untrained, as a training on no record ends.

    Raises:
        RunFailedError: training diverged.
    """
    seed, device = seed or Seed(), choose_device()
    if not len(examples):
        network = Network(fresh, device=device, task=model.task, seed=seed)
        return Trained(network.tensors(), seed.provenance(device))
    sealed = Sealed(
        fresh, epsilon=plan.epsilon, delta=plan.delta, device=device, task=model.task, seed=seed
    )
    try:
        sealed.train(examples, model.recipe, epochs=model.recipe.epochs, on_progress=on_progress)
        sealed.retrained()
        return Trained(sealed.open().tensors(), seed.provenance(device))
    finally:
        sealed.destroy()

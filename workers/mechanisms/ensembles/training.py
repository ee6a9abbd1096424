"""One member: trained anew on retained records of its own, or grown of them, sealed by itself."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray
from torch import nn

from app.domain.heads import boosted_trees
from app.domain.plan import Plan
from app.domain.provenance import Provenance
from app.planning.mechanisms.boosting import Boosting
from workers.data.loading import ModelSpec
from workers.mechanisms.boosting import grow
from workers.seal.sealed import Sealed, SealedProgress
from workers.training.examples import Examples
from workers.training.networks.ensemble import Ensemble
from workers.training.networks.network import Network
from workers.training.seed import Seed
from workers.training.team import choose_device

Numbers = Mapping[str, NDArray[Any]]
# Read here, because nothing is imported while weights are sealed.
_OF_TREES: Final = {each: version(each) for each in Boosting.libraries}


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

    A member that has no record left stays untrained, as a training on no record ends. Trees draw
    nothing from the seed.

    Raises:
        RunFailedError: training diverged.
    """
    seed, device = seed or Seed(), choose_device()
    described = model.description
    architecture = described.architecture.member
    grown = architecture.name == boosted_trees.NAME
    libraries = _OF_TREES if grown else {}
    if not len(examples):
        network = Network(fresh, device=device, task=model.task, seed=seed)
        return Trained(network.tensors(), seed.provenance(device, libraries))
    sealed = Sealed(
        fresh, epsilon=plan.epsilon, delta=plan.delta, device=device, task=model.task, seed=seed
    )
    try:
        if grown:
            boosting = Boosting(**boosted_trees.options_of(architecture.options))
            sealed.train_by(lambda network, _: grow(boosting, network, examples, described.task))
        else:
            epochs = model.recipe.epochs
            sealed.train(examples, model.recipe, epochs=epochs, on_progress=on_progress)
        sealed.retrained()
        return Trained(sealed.open().tensors(), seed.provenance(device, libraries))
    finally:
        sealed.destroy()


def ensemble_of(
    model: ModelSpec, fresh: Callable[[], nn.Module], tensors: Numbers, active: Sequence[int]
) -> Network:
    """Return the ensemble of these members, with tensors by their names in it."""
    members = (fresh() for _ in active)
    network = Network(
        lambda: Ensemble(members, model.description.task, active),
        device=choose_device(),
        task=model.task,
    )
    network.load(tensors)
    return network

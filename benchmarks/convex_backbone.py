"""A frozen backbone for the ten-class head, trained on records that the head never sees."""

from typing import Final

import torch

from app.domain.architectures.architecture import ArchitectureSpec
from app.domain.recipes.recipe import TrainingRecipe
from benchmarks.convex_case import shuffled
from benchmarks.data import Pictures
from workers.training.examples import Examples, classified
from workers.training.networks.architectures import build
from workers.training.networks.network import Network
from workers.training.tasks.task import INPUTS

HIDDEN: Final = (128, 64)
_ARCHITECTURE: Final = ArchitectureSpec(name="mlp", options={"hidden": list(HIDDEN)})
_RECIPE: Final = TrainingRecipe(learning_rate=0.1, momentum=0.9, batch_size=64)
_EPOCHS: Final = 5
_CLASSES: Final = 10


def public_half(pictures: Pictures) -> tuple[Examples, Examples]:
    """Return the training pictures in two disjoint halves: the public one, and the head's."""
    half = len(pictures.train) // 2
    rest = len(pictures.train) - half
    return shuffled(pictures.train, half), shuffled(pictures.train, rest, skip=half)


def backbone_features(pictures: Pictures) -> tuple[Examples, Examples, float]:
    """Train on the public half; return the head's features, the test's, and the whole net's score.

    The last hidden layer's output is the features. Each call trains anew, from a seed of its own.
    """
    public, private = public_half(pictures)
    network = Network(
        lambda: build(
            _ARCHITECTURE,
            input_shape=tuple(public.inputs.shape[1:]),
            classes=_CLASSES,
            allowed_factories=(),
        ),
        device=torch.device("cpu"),
    )
    network.train(public, _RECIPE, epochs=_EPOCHS)
    score = network.evaluate(pictures.test).score
    layers = torch.nn.Sequential(*list(network.module.children())[:-1]).eval()
    train, test = (
        classified(_outputs(layers, part), part.target) for part in (private, pictures.test)
    )
    return train, test, score


def _outputs(layers: torch.nn.Module, examples: Examples) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(
            [layers(batch[INPUTS]) for batch in examples.in_order(1024, device=examples.device)]
        )

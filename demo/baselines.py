"""Three uncertified models that the demo trains for comparison."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from app.domain.architectures import ArchitectureSpec
from app.domain.recipes import TrainingRecipe
from demo.digits import CLASSES
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.networks.architectures import build
from workers.training.networks.network import Network
from workers.training.team import choose_device


class Baselines:
    """Models of one definition, trained without the service.

    Args:
        definition: the definition sent to the service.
        everyone: all records.
        retained: the records of people who were not forgotten.
    """

    def __init__(
        self, definition: Mapping[str, Any], *, everyone: Examples, retained: Examples
    ) -> None:
        self._architecture = ArchitectureSpec.from_json(definition["architecture"])
        self._recipe = TrainingRecipe.from_json(definition["recipe"])
        self._everyone = everyone
        self._retained = retained

    def original(self, test: Examples) -> float:
        """Return the accuracy of a model trained on everyone."""
        return self._trained(Network(self._factory, device=choose_device()), self._everyone, test)

    def retrained(self, test: Examples) -> float:
        """Return the accuracy of a model retrained from scratch on the retained records."""
        return self._trained(Network(self._factory, device=choose_device()), self._retained, test)

    def random_start(self, test: Examples) -> float:
        """Return the accuracy after fine-tuning a random start of the initialisation's scale."""
        network = Network(self._factory, device=choose_device())
        flat = network.flat
        frame = ReferenceFrame.of(self._factory).on(flat)
        frame.weights_at(torch.randn_like(flat.values), out=flat.held)
        return self._trained(network, self._retained, test)

    def _trained(self, network: Network, examples: Examples, test: Examples) -> float:
        network.train(examples, self._recipe, epochs=self._recipe.epochs)
        return network.evaluate(test).metrics["accuracy"]

    def _factory(self) -> nn.Module:
        return build(
            self._architecture,
            input_shape=tuple(self._everyone.inputs.shape[1:]),
            classes=CLASSES,
            allowed_factories=(),
        )

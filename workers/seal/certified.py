"""Weights that met their target: they may be fine-tuned, evaluated and saved."""

import math
from typing import Any, Final, final

from numpy.typing import NDArray

from app.accounting.guarantees import Guarantee
from app.domain.errors import SealedStateError
from app.domain.recipes import TrainingRecipe
from workers.training.evaluate import Evaluation
from workers.training.examples import Records
from workers.training.loop import TrainingProgress
from workers.training.networks.network import Network

_MORE_NOISE: Final = (2, 4, 8, 16)

OPENING: Final = object()
"""Only ``workers.seal.sealed.Sealed.open`` has this token."""


@final
class Certified:
    """Weights that met their target. Post-processing without the forgotten records preserves it.

    Only ``Sealed.open`` creates these.

    Attributes:
        guarantee: holds for the weights and for everything derived from them.
    """

    def __init__(self, opening: object, network: Network, guarantee: Guarantee, steps: int) -> None:
        if opening is not OPENING:
            raise SealedStateError("only Sealed.open makes certified weights")
        self._network = network
        self.guarantee = guarantee
        self.noisy_steps = steps

    def fine_tune(
        self,
        retain: Records,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        held_out: Records | None = None,
        on_progress: TrainingProgress | None = None,
    ) -> int:
        """Train on retained records, noise-free, with a fresh optimiser; return the steps taken.

        Retained ``held_out`` records may end it early, by the recipe's ``patience``.

        The loss may be shown, as post-processing.

        Raises:
            RunFailedError: there are no records, or training diverged.
        """
        return self._network.train(
            retain, recipe, epochs=epochs, held_out=held_out, on_progress=on_progress
        )

    def gather(self) -> None:
        """Gather the weights in the leading process, where several processes divided them.

        Only there the object is of use afterwards.
        """
        self._network = self._network.gathered()

    def evaluate(self, examples: Records) -> Evaluation:
        """Return metrics and mean loss; ``RunFailedError`` if there are no examples."""
        return self._network.evaluate(examples)

    def noise_curve(self, examples: Records, *, noise_std: float) -> list[dict[str, float]]:
        """Return the headline metric with more noise than the standard deviation ``noise_std``.

        More noise on certified weights is post-processing. With less, it would be a figure of
        weights that nothing covers, which these do not tell.

        Raises:
            RunFailedError: there are no examples.
        """
        points = []
        for factor in _MORE_NOISE:
            more = noise_std * math.sqrt(factor * factor - 1)
            score = self._network.evaluate_noisier(examples, more).score
            if score is not None:
                points.append({"noise_std": factor * noise_std, "score": score})
        return points

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the tensors that the guarantee is about; all others are derived from them."""
        return tuple(self._network.flat.shapes)

    @property
    def size(self) -> int:
        """Number of weights in those tensors."""
        return self._network.flat.size

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters and buffers by their ``state_dict`` names."""
        return self._network.tensors()

    def views(self) -> dict[str, NDArray[Any]]:
        """Return the same without copying what is in the CPU's memory already."""
        return self._network.views()

    def __repr__(self) -> str:
        return f"<Certified: {self._network.flat.size} parameters, {self.noisy_steps} noisy steps>"

"""A network with its flat parameters: the object of training, unlearning and fine-tuning.

It is not protected: ``workers.seal.sealed.Sealed`` wraps weights that have not met a target. It is
used directly where there is nothing to protect: retraining, and a first release ``as_trained``.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipe import TrainingRecipe
from workers.training.buffers import require_supported_buffers
from workers.training.data import Examples
from workers.training.evaluate import Evaluation, evaluate
from workers.training.flat import FlatParameters
from workers.training.loop import TrainingProgress, train
from workers.training.tensor_names import renamed

Tensors = Mapping[str, NDArray[Any] | torch.Tensor]


class Network:
    """A freshly initialised network on its device.

    Args:
        factory: builds the module from torch's global generator, which has a fresh seed from the
            operating system during the call.
        device: where everything is computed.
        dtype: float32 or float64, of all parameters and buffers; None leaves them as built. A hook
            converts inputs to it.

    Attributes:
        module: the network; its parameters are views into ``flat``.
        flat: its trainable parameters and their gradients.

    Raises:
        PlanError: the architecture holds state that no mechanism covers.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int.from_bytes(os.urandom(8)))
            self.module = factory().to(device=device, dtype=dtype)
        if dtype is not None:
            self.module.register_forward_pre_hook(lambda _, inputs: _converted(inputs, dtype))
        require_supported_buffers(self.module)
        self.flat = FlatParameters(self.module)

    def __repr__(self) -> str:
        return f"<Network: {self.flat.size} parameters on {self.flat.device}>"

    def load(self, tensors: Tensors) -> None:
        """Replace all parameters and buffers.

        Args:
            tensors: parameters and buffers by their ``state_dict`` names, which may share a prefix;
                of any floating-point precision.

        Raises:
            RunFailedError: a tensor is missing, unknown, of another shape or kind, or not finite.
        """
        own = self.module.state_dict()
        tensors = renamed(tensors, own)
        with torch.no_grad():
            for name, target in own.items():
                tensor = torch.as_tensor(tensors[name])
                if tensor.shape != target.shape:
                    raise RunFailedError(
                        f"the weights' tensor {name!r} has shape {list(tensor.shape)}, "
                        f"the network's {list(target.shape)}"
                    )
                if tensor.is_floating_point() != target.is_floating_point():
                    raise RunFailedError(
                        f"the weights' tensor {name!r} is {tensor.dtype}, the network's "
                        f"{target.dtype}: save it unquantised"
                    )
                target.copy_(tensor)
                if not bool(torch.isfinite(target).all()):
                    raise RunFailedError(f"the weights' tensor {name!r} is not finite")

    def train(
        self,
        examples: Examples,
        recipe: TrainingRecipe,
        *,
        epochs: float,
        on_progress: TrainingProgress | None = None,
    ) -> int:
        """Train without noise and with a fresh optimiser; return the steps taken.

        Raises:
            RunFailedError: there are no examples, or training diverged.
        """
        return train(self.module, examples, recipe, epochs=epochs, on_progress=on_progress)

    def evaluate(self, examples: Examples) -> Evaluation:
        """Return accuracy and mean loss.

        Raises:
            RunFailedError: there are no examples.
        """
        return evaluate(self.module, examples)

    def evaluate_noisier(self, examples: Examples, noise_std: float) -> Evaluation:
        """Return the same with noise added to each parameter, which is taken away again.

        The noise protects nothing: it is of an ordinary generator.

        Raises:
            RunFailedError: there are no examples.
        """
        values = self.flat.values
        kept = values.clone()
        try:
            values.add_(torch.randn_like(values), alpha=noise_std)
            return self.evaluate(examples)
        finally:
            values.copy_(kept)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return copies of all parameters and buffers on the CPU by their ``state_dict`` names."""
        return {
            name: np.array(tensor.detach().cpu().numpy(), copy=True, order="C")
            for name, tensor in self.module.state_dict().items()
        }

    def destroy(self) -> None:
        """Overwrite parameters, gradients and buffers with zeros."""
        self.flat.destroy()
        with torch.no_grad():
            for tensor in self.module.state_dict().values():
                tensor.zero_()


def _converted(inputs: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(
        each.to(dtype) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
        for each in inputs
    )

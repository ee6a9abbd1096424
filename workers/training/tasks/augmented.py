"""Records that are another random variant of themselves at every visit in training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

import torch

from app.domain.scores import HIGHER_IS_BETTER
from app.domain.tasks.spec import FLIP, NOISE, SHIFT, TaskSpec
from app.registry.datasets.columns.encoding import NO_CLASS
from workers.training.tasks.task import INPUTS, TARGET, Batch

Spec = TypeVar("Spec", bound=TaskSpec)


@dataclass(frozen=True)
class Augmented(Generic[Spec]):
    """What built-in tasks have in common.

    Attributes:
        spec: the description; its ``augment`` is carried out in its order.
        calibrated: whether the outputs are logits where the task is to classify; a ridge head's
            scores are not, and yield no probabilities.
    """

    spec: Spec
    calibrated: bool = True
    headline: ClassVar[str]

    @property
    def higher_is_better(self) -> bool:
        """Return which way the metric that is shown first is better."""
        return HIGHER_IS_BETTER[self.headline]

    def truth(self, batch: Batch) -> Batch:
        """Return all but the inputs, [n, …] by name."""
        return {name: each for name, each in batch.items() if name != INPUTS}

    def measured(self, batch: Batch) -> Batch:
        """Return the records of a batch whose target is known."""
        target = batch[TARGET]
        rows = ~target.isnan().any(dim=1) if target.is_floating_point() else target != NO_CLASS
        return batch if bool(rows.all()) else {name: each[rows] for name, each in batch.items()}

    def augment(self, batch: Batch) -> Batch:
        """Return a random variant of each record, by numbers of torch's own generator."""
        if not self.spec.augment:
            return batch
        inputs = batch[INPUTS]
        for each in self.spec.augment:
            inputs = _VARIANTS[each.name](inputs, each.amount)
        return batch | {INPUTS: inputs}


def _flipped(inputs: torch.Tensor, _: float) -> torch.Tensor:
    chosen = torch.rand(len(inputs)) < 0.5
    mask = chosen.to(inputs.device).reshape(-1, *[1] * (inputs.ndim - 1))
    return torch.where(mask, inputs.flip(-1), inputs)


def _shifted(inputs: torch.Tensor, pixels: float) -> torch.Tensor:
    most = int(pixels)
    height, width = inputs.shape[-2:]
    by = torch.randint(-most, most + 1, (2, len(inputs))).to(inputs.device)
    padded = torch.nn.functional.pad(inputs, (most, most, most, most))
    rows = torch.arange(height, device=inputs.device) + most - by[0][:, None]
    columns = torch.arange(width, device=inputs.device) + most - by[1][:, None]
    one = torch.arange(len(inputs), device=inputs.device)[:, None, None]
    if inputs.ndim == 3:
        return padded[one, rows[:, :, None], columns[:, None, :]]
    moved = padded.movedim(1, -1)[one, rows[:, :, None], columns[:, None, :]]
    return moved.movedim(-1, 1).contiguous()


_VARIANTS: Final[Mapping[str, Callable[[torch.Tensor, float], torch.Tensor]]] = {
    FLIP: _flipped,
    SHIFT: _shifted,
    NOISE: lambda inputs, std: inputs + std * torch.randn(inputs.shape).to(inputs.device),
}

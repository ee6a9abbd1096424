"""Optimisers and schedules of a recipe, for training without noise or with privatised gradients."""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from app.domain.errors import InvalidInputError, RunFailedError
from app.domain.recipes import TrainingRecipe, members_of

# Smith and Topin 2018, arXiv 1708.07120, as ``torch.optim.lr_scheduler.OneCycleLR`` has it.
_ONE_CYCLE_START: Final = 1 / 25
_ONE_CYCLE_END: Final = _ONE_CYCLE_START / 10_000


def _eager(kind: type[torch.optim.Optimizer]) -> type[Any]:
    """Return an optimiser without what prepares it for ``torch.compile``, which takes a second.

    Its methods import ``torch._dynamo``, which makes a folder; the sealed phase would refuse that.
    """
    own = {
        "add_param_group": inspect.unwrap(kind.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(kind.step)),
        "zero_grad": inspect.unwrap(kind.zero_grad),
    }
    return type(kind.__name__, (kind,), own)


_SGD: Final = _eager(torch.optim.SGD)
_ADAM_W: Final = _eager(torch.optim.AdamW)


def optimizer_of(
    module: nn.Module,
    recipe: TrainingRecipe,
    pieces: Mapping[str, torch.Tensor] | None = None,
) -> torch.optim.Optimizer:
    """Return a fresh optimiser of all trainable parameters, in the recipe's groups.

    With ``pieces``, it changes these parts of them instead, by their parameters' names.

    Raises:
        RunFailedError: a group has no parameter.
    """
    trainable: Mapping[str, torch.Tensor] = pieces or {
        name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad
    }
    own: list[dict[str, Any]] = [group.to_json() for group in recipe.groups]
    try:
        members = members_of(recipe.groups, trainable)
    except InvalidInputError as error:
        raise RunFailedError(str(error)) from error
    groups = [
        {"params": [trainable[name] for name in names]}
        | ({} if "learning_rate" not in fields else {"lr": fields["learning_rate"]})
        | ({} if "weight_decay" not in fields else {"weight_decay": fields["weight_decay"]})
        for fields, names in zip([*own, {}], members, strict=True)
        if names
    ]
    rates = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "fused": True}
    optimizer: torch.optim.Optimizer = (
        _ADAM_W(groups, **rates)
        if recipe.optimizer == "adamw"
        else _SGD(groups, momentum=recipe.momentum, **rates)
    )
    return optimizer


class Schedule:
    """Sets the learning rate of every group before each of ``steps`` steps."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, recipe: TrainingRecipe, steps: int
    ) -> None:
        self._groups = [(group, group["lr"]) for group in optimizer.param_groups]
        self._recipe = recipe
        self._steps = steps
        self._varies = recipe.schedule != "constant" or recipe.warmup > 0

    def begin(self, step: int) -> None:
        """Set the rates for a step, counted from 1."""
        if not self._varies:
            return
        share = share_of_rate(
            self._recipe.schedule, self._recipe.warmup, step=step - 1, steps=self._steps
        )
        for group, highest in self._groups:
            group["lr"] = highest * share


def share_of_rate(schedule: str, warmup: float, *, step: int, steps: int) -> float:
    """Return a step's learning rate as a share of the highest, above 0 and at most 1.

    Args:
        schedule: ``one_cycle``, ``cosine`` or ``constant``.
        warmup: share of the steps in which the rate rises, from 0 to below 1.
        step: from 0.
        steps: how many there are.
    """
    if schedule == "one_cycle":
        # One step more than is taken: the last one would have a rate of almost zero.
        peak = warmup * (steps + 1) - 1
        if step <= peak:
            return _between(_ONE_CYCLE_START, 1.0, step / peak if peak > 0 else 1.0)
        return _between(1.0, _ONE_CYCLE_END, (step - peak) / (steps - peak))
    rising = warmup * steps
    if step < rising:
        return min(1.0, (step + 1) / rising)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
    return 1.0


def _between(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


@contextmanager
def overwritten_afterwards(
    optimizer: torch.optim.Optimizer, *others: torch.Tensor
) -> Iterator[None]:
    """Zero the optimiser's state, all gradients and ``others`` whenever the block ends."""
    try:
        yield
    finally:
        states = [value for state in optimizer.state.values() for value in state.values()]
        for value in (*states, *others):
            if isinstance(value, torch.Tensor):
                value.zero_()
        optimizer.zero_grad(set_to_none=False)

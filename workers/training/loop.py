"""Training without noise: initially, and again once the target is met."""

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipes import TrainingRecipe
from workers.training.evaluate import mean_loss
from workers.training.examples import Records
from workers.training.networks.flat import FlatParameters
from workers.training.optimizers import Schedule, optimizer_of, overwritten_afterwards
from workers.training.seed import Seed
from workers.training.tasks.task import Batch, Forward, Task

if TYPE_CHECKING:
    from workers.training.networks.network import Network


# Optimisers and clipping work on each number alone but for the gradient's norm, which is the whole
# one's. So several processes take the steps that one would take, up to the rounding of sums.
class Update:
    """A step of all weights, or of what this process holds; others take that of theirs.

    Attributes:
        trained: the tensors that the optimiser changes.
    """

    def __init__(self, network: "Network", recipe: TrainingRecipe) -> None:
        self._team, self._flat = network.team, network.flat
        self._whole = network.team.devices == 1
        pieces = None if self._whole else _with_gradients(network.flat)
        self.optimizer = optimizer_of(network.module, recipe, pieces)
        self.trained = [each for group in self.optimizer.param_groups for each in group["params"]]
        self._clip_norm = recipe.clip_norm

    def begin(self) -> None:
        """Forget the last step's gradients."""
        if self._whole:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._flat.gradients.zero_()

    def finish(self) -> None:
        """Clip by the whole norm, and step by the gradients that were added since."""
        if self._clip_norm is not None and self._whole:
            nn.utils.clip_grad_norm_(self.trained, self._clip_norm)
        elif self._clip_norm is not None:
            own = self._flat.gradients
            norm = self._team.norm(float(torch.linalg.vector_norm(own, dtype=torch.float64)))
            # As torch.nn.utils.clip_grad_norm_ has it.
            own.mul_(min(1.0, self._clip_norm / (norm + 1e-6)))
        self.optimizer.step()


def _with_gradients(flat: FlatParameters) -> dict[str, torch.Tensor]:
    """Return what this process holds of each tensor, by name, with its gradient."""
    flat.attach_gradients()
    named = dict(zip(flat.shapes, flat.held, strict=True))
    parts = torch.split(flat.gradients, [held.numel() for held in named.values()])
    for held, gradient in zip(named.values(), parts, strict=True):
        held.grad = gradient
    return named


@contextmanager
def updating(network: "Network", recipe: TrainingRecipe) -> Iterator[Update]:
    """Yield what changes the weights, with a fresh optimiser whose state is overwritten afterwards.

    Raises:
        RunFailedError: a group of the recipe has no parameter.
    """
    update = Update(network, recipe)
    try:
        with overwritten_afterwards(update.optimizer):
            yield update
    finally:
        if network.team.devices > 1:
            network.flat.release_gradients()


if TYPE_CHECKING:
    from workers.training.networks.network import Network

TrainingProgress = Callable[[int, int, torch.Tensor], None]
"""Step taken (from 1), all steps, and the batch's mean loss as a detached 0-dim tensor.

Reading the loss waits for the device: do it a few times a second. The caller decides whether it may
be shown.
"""

# How often to wait for a loss on a GPU.
_STEPS_BETWEEN_CHECKS = 32


def train(
    network: "Network",
    examples: Records,
    recipe: TrainingRecipe,
    *,
    epochs: float,
    held_out: Records | None = None,
    on_progress: TrainingProgress | None = None,
) -> int:
    """Train without noise and with a fresh optimiser; return the steps taken.

    What is minimised is the mean loss. The order of records and what network and task draw, as for
    dropout, follow from the network's seed, or from a fresh one, which is kept nowhere.

    Args:
        network: trained in place, on its own device; left in training mode.
        examples: at least one; of several processes, the leading one's count.
        recipe: ``recipe.epochs`` is not used.
        epochs: passes over the examples, fractions allowed; the schedule spans exactly these.
        held_out: records that the recipe's ``patience`` looks at, only outside of the seal; None
            trains all epochs.
        on_progress: called after each step; its exceptions end the training.

    Raises:
        RunFailedError: there are no examples, a group of the recipe has no parameter, or the loss
            or a weight stopped being finite.
        PlanError: the network changed its base.
    """
    module, task, team = network.module, network.task, network.team
    per_epoch = examples.steps_per_epoch(recipe.batch_size)
    steps = round(epochs * per_epoch)
    if steps < 1:
        return 0
    device = network.flat.device
    loss_sum = torch.zeros((), device=device)
    patience = None
    if recipe.patience is not None and held_out is not None and len(held_out):
        patience = _Patience(network, held_out, recipe.patience)
    module.train()
    seed = network.seed or Seed()
    seed.draw()
    epochs_of = examples.forever(recipe.batch_size, device=device, random=seed.order())
    with (
        nullcontext() if network.seed is None else seed.computing(),
        updating(network, recipe) as update,
    ):
        schedule = Schedule(update.optimizer, recipe, steps)
        dealt = team.deal(islice(epochs_of, steps), recipe.micro_batches)
        for step, parts in enumerate(dealt, start=1):
            update.begin()
            seen = ((task.augment(part), share) for part, share in parts)
            loss = team.total(add_gradient(module, task, seen, precision=recipe.precision))
            schedule.begin(step)
            update.finish()
            loss_sum += loss
            if step % _STEPS_BETWEEN_CHECKS == 0 or step == steps:
                _require_finite(loss_sum)
            if on_progress is not None:
                on_progress(step, steps, loss)
            if patience is not None and step % per_epoch == 0 and patience.exhausted():
                break
    if patience is not None:
        patience.restore()
    for tensor in update.trained:
        _require_finite(tensor.detach().sum())
    network.require_base()
    if team.devices > 1:
        del update
        gc.collect()  # PyTorch's frames may refer to the optimiser, and so to its state
    return step


class _Patience:
    """The best weights so far, and how long ago that was.

    Training ends when held-out records say that it does not help any more; ``epochs`` says how many
    in a row may bring nothing better. It is outside of the seal, and the records are retained.
    """

    def __init__(self, network: "Network", held_out: Records, epochs: int) -> None:
        self._network, self._held_out = network, held_out
        self._epochs = epochs
        self._smallest = math.inf
        self._best: dict[str, torch.Tensor] = {}
        self._in_vain = 0

    def exhausted(self) -> bool:
        """Look at the weights after an epoch; return whether training should end."""
        network = self._network
        found = mean_loss(network.module, network.task, self._held_out, network.team)
        if math.isnan(found) and not self._best:  # no held-out record may have a target
            return False
        if found < self._smallest:
            self._smallest, self._in_vain = found, 0
            state = network.module.state_dict()
            self._best = {name: each.clone() for name, each in state.items()}
        else:
            self._in_vain += 1
        return self._in_vain >= self._epochs

    def restore(self) -> None:
        """Give the module its best weights and statistics; none if no epoch was looked at."""
        own = self._network.module.state_dict()
        with torch.no_grad():
            for name, tensor in self._best.items():
                own[name].copy_(tensor)


def _require_finite(number: torch.Tensor) -> None:
    if not bool(torch.isfinite(number)):
        raise RunFailedError("training diverged: lower learning_rate")


def add_gradient(
    module: Forward, task: Task, parts: Iterable[tuple[Batch, float]], *, precision: str
) -> torch.Tensor:
    """Add the gradient of a batch's mean loss; return that loss, detached, 0-dim.

    The batch comes in parts with their shares, of which a process may have a few: then both are
    what these add to the whole batch's.

    In ``bfloat16`` the forward pass runs under autocast; the loss is computed in float32, and
    weights and gradients keep their dtype. Noisy and tracked phases never use it.
    """
    total: torch.Tensor | None = None
    forward = _halved(module) if precision == "bfloat16" else module
    for part, share in parts:
        loss = task.loss(forward, part).mean()
        if share != 1.0:
            loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    return torch.zeros(()) if total is None else total


def _halved(module: Forward) -> Forward:
    """Return the network with its arithmetic in bfloat16, and its outputs in float32."""

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            outputs: torch.Tensor = module(*inputs)
        return outputs.to(torch.float32)

    return forward

"""Training without noise: initially, and again once the target is met."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from app.domain.errors import RunFailedError
from app.domain.recipes.recipe import TrainingRecipe
from workers.data.examples import Records
from workers.distributed.team import ALONE, Team
from workers.networks.flat import FlatParameters
from workers.tasks.augmented import draw_afresh, visited
from workers.tasks.task import Task
from workers.training.evaluate import mean_loss
from workers.training.gradients import add_gradient
from workers.training.optimizers import Schedule
from workers.training.patience import Patience
from workers.training.updates import trained_by, updating

TrainingProgress = Callable[[int, int, torch.Tensor], None]
"""Step taken (from 1), all steps, and the batch's mean loss as a detached 0-dim tensor.

Reading the loss waits for the device: do it a few times a second. The caller decides whether it may
be shown.
"""

# How often to wait for a loss on a GPU.
_STEPS_BETWEEN_CHECKS = 32


def train(
    module: nn.Module,
    task: Task,
    examples: Records,
    recipe: TrainingRecipe,
    *,
    epochs: float,
    held_out: Records | None = None,
    on_progress: TrainingProgress | None = None,
    flat: FlatParameters | None = None,
    team: Team = ALONE,
) -> int:
    """Minimise the mean loss of ``examples`` with a fresh optimiser; return the steps taken.

    What network and task draw, as for dropout, starts at fresh seeds from the operating system, so
    that it says nothing of what was trained before.

    Args:
        module: trained in place, on its own device; left in training mode.
        task: whose loss.
        examples: at least one.
        recipe: ``recipe.epochs`` is not used.
        epochs: passes over the examples, fractions allowed; the schedule spans exactly these.
        held_out: records that the recipe's ``patience`` looks at; None trains all epochs.
        on_progress: called after each step; its exceptions end the training.
        flat: the module's parameters, where several processes divide them.
        team: these processes; the leading one's weights, examples and held-out records count.

    Raises:
        RunFailedError: there are no examples, a group of the recipe has no parameter, or the loss
            or a weight stopped being finite.
    """
    per_epoch = examples.steps_per_epoch(recipe.batch_size)
    steps = round(epochs * per_epoch)
    if steps < 1:
        return 0
    device = next(module.parameters()).device
    loss_sum = torch.zeros((), device=device)
    patience = _patience(module, task, recipe, held_out, team)
    module.train()
    draw_afresh()
    epochs_of = examples.forever(recipe.batch_size, device=device)
    with updating(module, flat, recipe, team) as update:
        schedule = Schedule(update.optimizer, recipe, steps)
        dealt = team.deal(islice(epochs_of, steps), recipe.micro_batches)
        for step, parts in enumerate(dealt, start=1):
            update.begin()
            seen = ((visited(task, part), share) for part, share in parts)
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
    for tensor in trained_by(update.optimizer):
        _require_finite(tensor.detach().sum())
    return step


def _patience(
    module: nn.Module, task: Task, recipe: TrainingRecipe, held_out: Records | None, team: Team
) -> Patience | None:
    if recipe.patience is None or held_out is None or len(held_out) == 0:
        return None
    return Patience(module, lambda: mean_loss(module, task, held_out, team), recipe.patience)


def _require_finite(number: torch.Tensor) -> None:
    if not bool(torch.isfinite(number)):
        raise RunFailedError("training diverged: lower learning_rate")

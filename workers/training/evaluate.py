"""Evaluates a network on held-out examples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from app.domain.errors import RunFailedError
from workers.training.examples import Records
from workers.training.networks.ensemble import Ensemble
from workers.training.tasks.custom import CustomTask
from workers.training.tasks.task import INPUTS, Arrays, Batch, Forward, Task, joined
from workers.training.team import ALONE, Team

EVALUATION_BATCH = 1024


class NothingToMeasureError(RunFailedError):
    """No held-out record has a target."""


@dataclass(frozen=True)
class Evaluation:
    """The result of ``evaluate``.

    Attributes:
        metrics: the task's figures, by name.
        mean_loss: of the task's loss.
        headline: which of them is shown first; None if it is not defined for these.
        examples: number of examples.
        baseline: what one answer for all examples has of the headline.
        fewer: the headline with so many of an ensemble's members.
        higher_is_better: which way the headline is better; None if nobody knows.
    """

    metrics: Mapping[str, float]
    headline: str | None
    mean_loss: float
    examples: int
    baseline: float | None
    higher_is_better: bool | None
    fewer: Mapping[int, float]

    @property
    def score(self) -> float | None:
        """The metric that is shown first."""
        return None if self.headline is None else self.metrics[self.headline]


def evaluate(
    module: nn.Module, task: Task, examples: Records, fewer: Sequence[int] = ()
) -> Evaluation:
    """Return metrics and mean loss in evaluation mode; the module's mode is kept.

    Of all records only predictions and targets are kept, since a metric may need all of them. Of an
    ensemble also the first members by themselves are measured, as many as each of ``fewer`` says;
    each member computes a batch once.

    Raises:
        NothingToMeasureError: there are no examples with a target.
    """
    device = next(module.parameters()).device
    modules, members = [module], list[nn.Module]()
    if isinstance(module, Ensemble):
        modules += [module.first_of(count) for count in fewer]
        members += module.members.values()
    predictions: list[list[Batch]] = [[] for _ in modules]
    targets: list[Batch] = []
    losses = []
    # An operator's own task may change what the network answers.
    is_own = isinstance(task, CustomTask)
    forwards: Sequence[Forward] = modules if is_own else [*map(once, modules)]
    with evaluating(module), _remembering([] if is_own else members):
        for batch in map(task.measured, examples.in_order(EVALUATION_BATCH, device=device)):
            if not len(batch[INPUTS]):
                continue
            losses.append(task.loss(forwards[0], batch).cpu().double())
            for forward, found in zip(forwards, predictions, strict=True):
                found.append(_on_cpu(task.predict(forward, batch)))
            targets.append(_on_cpu(task.truth(batch)))
    if not losses:
        raise NothingToMeasureError("there are no held-out records to evaluate on")
    truth = _arrays(joined(targets))
    metrics, *others = (task.metrics(_arrays(joined(found)), truth) for found in predictions)
    scores = zip(fewer, (each.get(task.headline) for each in others), strict=True)
    every = torch.cat(losses)
    return Evaluation(
        metrics=metrics,
        headline=task.headline if task.headline in metrics else None,
        baseline=task.baseline(truth) if task.headline in metrics else None,
        higher_is_better=task.higher_is_better,
        mean_loss=float(every.mean()),
        examples=len(every),
        fewer={count: score for count, score in scores if score is not None},
    )


def once(forward: Forward) -> Forward:
    """Return what computes the same inputs once, however often it is asked for them in a row."""
    found: list[torch.Tensor] = []

    def remembered(inputs: torch.Tensor) -> torch.Tensor:
        if not found or found[0] is not inputs:
            found[:] = inputs, forward(inputs)
        return found[1]

    return remembered


@contextmanager
def _remembering(members: Iterable[nn.Module]) -> Iterator[None]:
    """Let each of these compute the same inputs ``once``, whatever calls it."""
    with ExitStack() as restored:
        for member in members:
            member.forward = once(member.forward)
            restored.callback(delattr, member, "forward")
        yield


def mean_loss(module: nn.Module, task: Task, examples: Records, team: Team = ALONE) -> float:
    """Return the mean loss in evaluation mode; the module's mode is kept.

    Of several processes each computes it, of all records, and gets the leading one's. It is NaN if
    no record has a target.
    """
    device = next(module.parameters()).device
    losses = [torch.empty(0, dtype=torch.float64)]
    with evaluating(module):
        for batch in team.same(examples.in_order(EVALUATION_BATCH, device=device)):
            measured = task.measured(batch)
            if len(measured[INPUTS]):  # layers need not take an empty batch
                losses.append(task.loss(module, measured).cpu().double())
    found = torch.cat(losses).mean().reshape(1)
    team.align_(found)
    return float(found)


def _arrays(batch: Batch) -> Arrays:
    return {name: each.numpy() for name, each in batch.items()}


def _on_cpu(batch: Batch) -> Batch:
    return {name: each.cpu() for name, each in batch.items()}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Compute without gradients in evaluation mode; every layer's own mode is restored."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for layer, training in modes:
            layer.training = training

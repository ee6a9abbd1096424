"""The noisy phase: its batches, and steps on retained records until the target is met.

It controls all state beside the parameters that could carry the original model past the noise
(docs/guarantees.md, section 1): statistics are reset and detached, frozen parameters and other
buffers are the public ones, no optimiser state exists, and neither loss nor gradient norm leaves
the loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from app.accounting.guarantees import Guarantee
from app.domain.errors import TargetNotMetError
from workers.noise.generators import NoiseSource
from workers.training.examples import Records
from workers.training.frame import RawWeights, ReferenceFrame
from workers.training.networks.buffers import (
    require_supported_buffers,
    reset_buffers,
    without_buffers,
)
from workers.training.networks.network import Network
from workers.training.seed import Seed
from workers.training.tasks.task import INPUTS, Batch
from workers.training.team import ALONE, Team


class Feed(Protocol):
    """Endless batches, and what is minimised."""

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield a batch for every step."""

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""

    @property
    def micro_batches(self) -> int:
        """In how many parts a process computes a batch, one after the other."""

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return what a batch's step minimises, of its records' losses [n]."""


class RandomBatches:
    """Random minibatches and their mean loss.

    Raises:
        RunFailedError: at the first batch, if there are no records.
    """

    def __init__(self, examples: Records, batch_size: int, *, micro_batches: int = 1) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self.micro_batches = micro_batches

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield epochs, each in its own order."""
        return self._examples.forever(self._batch_size, device=device)

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every record once."""
        return self._examples.epoch(self._batch_size, device=device)

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        return losses.mean()


class FixedBatches:
    """A model's fixed batches, cyclically; forgotten records are simply absent.

    What is minimised is the sum of the batch's losses divided by ``batch_size``, which does not
    shrink when records are forgotten: a forgotten record counts as a gradient of zero
    (docs/guarantees.md, section 6).

    Args:
        examples: retained records only.
        batch_of: int64 [n], the batch of each record, below ``batches``.
        batches: length of the cycle.
        batch_size: divisor of the loss.
        position: how many steps the lineage has taken; the cycle continues there.
        loss_bound: caps one record's loss smoothly, as bound * tanh(loss / bound); None does not.
    """

    def __init__(
        self,
        examples: Records,
        batch_of: NDArray[np.int64],
        *,
        batches: int,
        batch_size: int,
        position: int = 0,
        loss_bound: float | None = None,
    ) -> None:
        self._examples = examples
        self._order = np.argsort(batch_of, kind="stable")
        self._sizes = np.bincount(batch_of, minlength=batches).tolist()
        self.micro_batches = 1  # a gradient's rounding is accounted for as one sum
        self._batch_size = batch_size
        self._next = position % batches
        self._loss_bound = loss_bound

    def forever(self, device: torch.device) -> Iterator[Batch]:
        """Yield batches, continuing where the last call stopped."""
        for batch in self._from(self._next, device):
            self._next = (self._next + 1) % len(self._sizes)
            yield batch

    def once(self, device: torch.device) -> Iterator[Batch]:
        """Yield every non-empty batch once."""
        for batch in islice(self._from(0, device), len(self._sizes)):
            if len(batch[INPUTS]):
                yield batch

    def _from(self, first: int, device: torch.device) -> Iterator[Batch]:
        return self._examples.cycle(self._order, self._sizes, first, device=device)

    def objective(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the sum divided by ``batch_size``."""
        if self._loss_bound is not None:
            losses = self._loss_bound * torch.tanh(losses / self._loss_bound)
        return losses.sum() / self._batch_size


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """The noise of a run, and the target that it has to meet.

    Attributes:
        team: the processes, of which each has a stretch of the position.
    """

    noise: NoiseSource
    epsilon: float
    delta: float
    team: Team = ALONE


NoisyProgress = Callable[[int, int, Callable[[], Guarantee | None]], None]
"""Step taken (from 1), planned steps, and what computes the guarantee so far.

Computing it may take longer than a step. Within the call it is that of the steps taken, None if
there is none yet.
"""


class NoisyRun(Protocol):
    """A rule at work: see ``workers.mechanisms.gradient_clipping``."""

    @property
    def steps(self) -> int:
        """How many steps were taken."""

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of the steps taken; None if there is none yet."""

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move ``position`` by one noisy step in place; ``gradient`` is scratch."""


class Rule(Protocol):
    """A mechanism's update rule with all its parameters, fixed before the run."""

    @property
    def steps(self) -> int:
        """How many steps the plan expects, which is also the maximum."""

    def begin(self, position: torch.Tensor, conditions: Conditions) -> NoisyRun:
        """Prepare the start in place, with noise if the rule has it.

        Raises:
            TargetNotMetError: no run of this rule can meet the target. Nothing was changed.
            PlanError: the plan was made for another number of weights.
        """


def run_noisy_phase(
    network: Network,
    rule: Rule,
    feed: Feed,
    *,
    frame: ReferenceFrame | None,
    noise: NoiseSource,
    epsilon: float,
    delta: float,
    on_progress: NoisyProgress,
) -> NoisyRun:
    """Take noisy steps in place until the odometer meets (epsilon, delta); return the run.

    Buffers are left at their initial values. The order of batches does not depend on weights or
    records. The rule works on a float64 position in the frame; without a frame, on the weights
    themselves, which are then float64. Of several processes each moves what it holds, with noise of
    its own source, by the sum of all gradients; the leading one says when to stop.

    Raises:
        TargetNotMetError: the rule's parameters cannot meet the target.
        RunFailedError: there are no records, or the frame belongs to another architecture.
        SealedStateError: the network moved its parameters out of the flat buffer.
        PlanError: the network created or changed a public tensor or a buffer.
    """
    flat = network.flat
    coordinates = RawWeights(flat.values) if frame is None else frame.on(flat)
    position = coordinates.position_of(flat.held)
    conditions = Conditions(noise=noise, epsilon=epsilon, delta=delta, team=network.team)
    run = rule.begin(position, conditions)
    coordinates.weights_at(position, out=flat.held)
    reset_buffers(network.module)

    def step(gradient: torch.Tensor) -> None:
        if run.steps >= rule.steps:
            raise TargetNotMetError("the planned steps did not meet the target")
        run.step(position, coordinates.pull_back_(gradient))
        coordinates.weights_at(position, out=flat.held)
        on_progress(run.steps, rule.steps, run.guarantee)

    try:
        _step_until(network, feed, step, done=lambda: run.met)
        if run.steps < rule.steps:
            on_progress(run.steps, run.steps, run.guarantee)
    finally:
        if frame is not None:
            position.zero_()
    return run


def descend(
    network: Network,
    move_: Callable[[torch.Tensor, torch.Tensor, NoiseSource], None],
    feed: Feed,
    *,
    steps: int,
    noise: NoiseSource,
    on_progress: Callable[[int, int], None],
    start_std: float | None = None,
) -> None:
    """Take ``steps`` steps by ``move_`` in place: the training whose drift a history tracks.

    The network is float64: a rule moves its weights without a frame. It starts from zeros, or from
    Gaussian weights of the standard deviation ``start_std``; without one, from where it is.

    Raises:
        SealedStateError: the network moved its parameters out of the flat buffer.
        PlanError: the network created or changed a public tensor or a buffer.
    """
    position, taken = network.flat.values, 0
    if start_std is not None:
        position.zero_()
    if start_std:
        noise.add_(position, start_std)

    def step(gradient: torch.Tensor) -> None:
        nonlocal taken
        move_(position, gradient, noise)
        taken += 1
        on_progress(taken, steps)

    _step_until(network, feed, step, done=lambda: taken >= steps)


def _step_until(
    network: Network,
    feed: Feed,
    step: Callable[[torch.Tensor], None],
    *,
    done: Callable[[], bool],
) -> None:
    """Pass each batch's gradient, in the weights' dtype, to ``step``, which may overwrite it."""
    module, flat = network.module, network.flat
    network.require_base()
    module.train()
    Seed().draw()
    batches = _until(done, feed.forever(flat.device))
    with without_buffers(module):
        flat.attach_gradients()
        for parts in network.team.deal(batches, feed.micro_batches):
            flat.gradients.zero_()
            for part, share in parts:
                loss = feed.objective(network.task.loss(module, network.task.augment(part)))
                (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
            step(flat.gradients)
    flat.require_attached()
    network.require_base()
    require_supported_buffers(module)
    flat.release_gradients()


def _until(done: Callable[[], bool], batches: Iterator[Batch]) -> Iterator[Batch]:
    while not done():
        yield next(batches)

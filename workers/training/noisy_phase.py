"""The noisy phase: steps on retained records until the target is met.

It controls all state beside the parameters that could carry the original model past the noise
(docs/guarantees.md, section 1): statistics are reset and detached, frozen parameters and other
buffers are the public ones, no optimiser state exists, and neither loss nor gradient norm leaves
the loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from app.accounting.guarantees import Guarantee
from app.domain.errors import TargetNotMetError
from workers.noise.generators import NoiseSource
from workers.training.feeds import Feed
from workers.training.frame import RawWeights, ReferenceFrame
from workers.training.networks.buffers import (
    require_supported_buffers,
    reset_buffers,
    without_buffers,
)
from workers.training.networks.network import Network
from workers.training.tasks.augmented import draw_afresh
from workers.training.tasks.task import Batch
from workers.training.team import ALONE, Team


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
    draw_afresh()
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

"""The noisy phase: noisy steps on retained records until the target is met.

It owns everything beside the parameters that could carry the original model past the noise
(MATH.md section 3a'): buffers are reset and taken away, there is no optimiser state, and neither
loss nor gradient norm leaves the loop.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn.functional import cross_entropy

from app.accounting.guarantees import Guarantee
from app.domain.errors import TargetNotMetError
from workers.mechanisms.frame import ReferenceFrame
from workers.noise import NoiseSource
from workers.training.buffers import require_supported_buffers, reset_buffers, without_buffers
from workers.training.data import Examples
from workers.training.network import Network

NoisyProgress = Callable[[int, int, Guarantee], None]
"""Step taken (from 1), planned steps, and the guarantee so far."""


class NoisyRun(Protocol):
    """A mechanism at work: see ``workers.mechanisms.gradient_clipping``."""

    @property
    def steps(self) -> int:
        """How many steps were taken."""

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""

    def guarantee(self) -> Guarantee:
        """Return what the steps taken guarantee."""

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move ``position`` by one noisy step in place; ``gradient`` is scratch."""


class Mechanism(Protocol):
    """An update rule with all its parameters, fixed before the run."""

    @property
    def steps(self) -> int:
        """How many steps the plan expects, and the most that a run takes."""

    def begin(
        self, position: torch.Tensor, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> NoisyRun:
        """Prepare the start in place, with noise if the rule says so.

        Raises:
            TargetNotMetError: no run of this rule can meet the target.
        """


def run_noisy_phase(
    network: Network,
    mechanism: Mechanism,
    retain: Examples,
    *,
    frame: ReferenceFrame,
    noise: NoiseSource,
    batch_size: int,
    epsilon: float,
    delta: float,
    on_progress: NoisyProgress,
) -> NoisyRun:
    """Take noisy steps in place until the odometer meets (epsilon, delta); return the run.

    Buffers are left at their initial values. Minibatches come in an order drawn without looking at
    weights or records.

    Raises:
        TargetNotMetError: the mechanism's parameters cannot meet the target.
        RunFailedError: there are no records, or the frame belongs to another architecture.
        SealedStateError: the network moved its parameters out of the flat buffer.
        PlanError: the network made itself a new buffer on the way.
    """
    module, flat = network.module, network.flat
    flat_frame = frame.on(flat.shapes, flat.device)
    position = flat_frame.position_of(flat.values)
    run = mechanism.begin(position, noise=noise, epsilon=epsilon, delta=delta)
    flat_frame.weights_at(position, out=flat.values)
    reset_buffers(module)
    module.train()
    batches = retain.forever(batch_size, device=flat.device)
    with without_buffers(module):
        flat.attach_gradients()
        while not run.met:
            if run.steps >= mechanism.steps:
                raise TargetNotMetError("the planned steps did not meet the target")
            features, labels = next(batches)
            flat.gradients.zero_()
            cross_entropy(module(features), labels).backward()  # type: ignore[no-untyped-call]
            run.step(position, flat_frame.pull_back_(flat.gradients))
            flat_frame.weights_at(position, out=flat.values)
            on_progress(run.steps, mechanism.steps, run.guarantee())
    flat.require_attached()
    require_supported_buffers(module)
    flat.release_gradients()
    return run

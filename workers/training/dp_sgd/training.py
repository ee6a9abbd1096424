"""DP-SGD: the update rule for ``app.accounting.dp_sgd``.

Abadi et al. 2016, Algorithm 1, with Poisson samples. With sampling rate q, gradient clip C and the
recipe's batch size B, each step samples every record with probability q and computes

    g <- (sum over the sample of clip(record's gradient, C) + N(0, (noise_multiplier C)^2 I)) / B

in float64 (``workers.training.dp_sgd``), the noise rounded to the public grid; only g is rounded to
the weights' dtype. The optimiser, momentum, weight decay and schedule use only g, so they are
post-processing. B is a public constant, not the size of the sample. A sample may be empty; its step
is pure noise, and counts.

Nothing depends on intermediate results: the number of steps is fixed, no loss is computed, and
diverging weights are trained to the end, because stopping would reveal information.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.recipes import TrainingRecipe
from workers.noise.generators import NoiseSource
from workers.training.dp_sgd.gradients import per_record_gradients
from workers.training.examples import Examples
from workers.training.networks.network import Network
from workers.training.optimizers import Schedule, optimizer_of, overwritten_afterwards
from workers.training.seed import Seed
from workers.training.tasks.task import Batch

_CHUNK: Final = 1 << 17  # records decided at a time: 1 MB of random words stays in the cache


def poisson_sample(records: int, rate: float) -> NDArray[np.int64]:
    """Return the indices, in order, of the records sampled for one step; may be empty.

    Each record is sampled independently, if a fresh 64-bit word from the operating system's
    generator is below ``rate`` * 2^64. This rounds ``rate`` down by less than 2^-64.

    Args:
        records: number of records.
        rate: probability of each, above 0 and at most 1.
    """
    if rate == 1:
        return np.arange(records)
    threshold = np.uint64(int(rate * 2.0**64))
    taken = [
        first
        + np.flatnonzero(
            np.frombuffer(os.urandom(8 * min(_CHUNK, records - first)), dtype=np.uint64) < threshold
        )
        for first in range(0, records, _CHUNK)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *taken])


@dataclass(frozen=True)
class PrivateTraining:
    """The parameters of one training, chosen without looking at records.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum, in units of the clip.
        gradient_clip: C, bound on the norm of one record's gradient over all parameters.
        sampling_rate: q, above 0 and at most 1; B / (number of records) for samples of B records on
            average.
        steps: number of steps.

    Raises:
        ParameterError: one of them is out of its range.
    """

    noise_multiplier: float
    gradient_clip: float
    sampling_rate: float
    steps: int

    def __post_init__(self) -> None:
        """Reject impossible parameters."""
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("gradient_clip", self.gradient_clip)
        require_fraction("sampling_rate", self.sampling_rate)
        require_steps("steps", self.steps)


def train_privately(
    network: Network,
    examples: Examples,
    recipe: TrainingRecipe,
    training: PrivateTraining,
    *,
    noise: NoiseSource,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Train in place by DP-SGD.

    Args:
        network: its module is left in training mode, without hooks, with its parameters in
            ``flat``.
        examples: the records to protect, one row each.
        recipe: optimiser, schedule and the batch size B; ``recipe.epochs`` is not used.
        training: noise, clip, sampling rate and steps.
        noise: a fresh source for this training.
        on_progress: called after each step with the step (from 1) and the number of steps; its
            exceptions end the training.

    Raises:
        PlanError: the architecture has no gradient per record; the message names the layer.
        SealedStateError: the network moved its parameters out of the flat buffer.
    """
    noise_std = training.noise_multiplier * training.gradient_clip
    steps = training.steps
    module, flat = network.module, network.flat
    module.train()
    Seed().draw()
    optimizer = optimizer_of(module, recipe)
    schedule = Schedule(optimizer, recipe, steps)
    clipped_sum = torch.zeros_like(flat.values, dtype=torch.float64)

    def probes(count: int) -> Batch:
        return examples.like(count).rows(0, count, device=flat.device)

    flat.attach_gradients()
    with (
        overwritten_afterwards(optimizer, clipped_sum),
        per_record_gradients(
            module, network.task, flat, probes=probes, expected=recipe.batch_size
        ) as gradients,
    ):
        filler = examples.like(gradients.rows)
        for step in range(1, steps + 1):
            clipped_sum.zero_()
            # Add the clipped gradients of one Poisson sample to ``out``, in passes of equal size.
            chosen = poisson_sample(len(examples), training.sampling_rate)
            for first in range(0, len(chosen), gradients.rows):
                some = chosen[first : first + gradients.rows]
                batch = examples.filled(some, filler, device=clipped_sum.device)
                gradients.add_clipped(
                    network.task.augment(batch),
                    counted=len(some),
                    clip_norm=training.gradient_clip,
                    out=clipped_sum,
                )
            noise.add_(clipped_sum, noise_std)
            flat.gradients.copy_(clipped_sum.div_(recipe.batch_size))
            schedule.begin(step)
            optimizer.step()
            if on_progress is not None:
                on_progress(step, steps)
    flat.require_attached()
    network.require_base()
    flat.release_gradients()

"""A run's noise according to its certificate: how many numbers, on which grid.

It follows from the accountant's parameters alone. The worker states what its noise source counted,
the verifier recomputes it from the parameters, and the two must agree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from app.accounting import dp_sgd, precision
from app.certificates.parameters import (
    DpSgd,
    GradientClipping,
    ModelClipping,
    NoisyGdNonconvex,
    OutputPerturbation,
    StepsEvent,
    Tracked,
    read_parameters,
)
from app.certificates.schema import Section
from app.domain.schedules import to_json
from app.domain.states import Basis


@dataclass(frozen=True)
class Noise:
    """The random numbers that a run drew for its release.

    Attributes:
        generator: the generator's name.
        grid: what the last noisy position was rounded to, a power of two, in the coordinates of the
            noise; None if these depend on more than the parameters.
        drawn: how many numbers.
    """

    generator: str
    grid: float | None
    drawn: int


@dataclass(frozen=True)
class Draws:
    """A number of Gaussian draws of one standard deviation; for DP-SGD in units of its clip."""

    noise_std: float
    count: int


def draws_of(mechanism: str, parameters: Mapping[str, Any], *, basis: Basis) -> list[Draws]:
    """Return what a run drew, in order.

    Raises:
        VerificationError: the mechanism is unknown, or its parameters are malformed.
    """
    read = read_parameters(mechanism, to_json(parameters))
    return _draws(read, basis is Basis.CERTIFIED_RELEASE)


def grid_of(mechanism: str, draws: list[Draws]) -> float | None:
    """Return the grid of the last draws; None for DP-SGD, whose clip is not a parameter."""
    return None if mechanism == dp_sgd.NAME else precision.grid_of(draws[-1].noise_std)


@singledispatch
def _draws(_: Section, first: bool) -> list[Draws]:  # noqa: ARG001, FBT001
    return []


@_draws.register
def _(read: GradientClipping, first: bool) -> list[Draws]:  # noqa: ARG001, FBT001
    if isinstance(read.noise_std, float):
        return [Draws(read.noise_std, read.dimension * read.steps)]
    return [Draws(noise_std, read.dimension) for noise_std in read.noise_std]


@_draws.register
def _(read: OutputPerturbation, first: bool) -> list[Draws]:  # noqa: ARG001, FBT001
    return [Draws(read.noise_std, read.dimension)]


@_draws.register
def _(read: ModelClipping, first: bool) -> list[Draws]:  # noqa: ARG001, FBT001
    steps = Draws(read.noise_std, read.dimension * read.steps)
    if read.initial_noise_std == 0:
        return [steps]
    return [Draws(read.initial_noise_std, read.dimension), steps]


@_draws.register
def _(read: DpSgd, first: bool) -> list[Draws]:  # noqa: FBT001
    # Only training draws noise: later requests change no weight.
    return [Draws(read.noise_multiplier, read.dimension * read.steps)] if first else []


@_draws.register
def _(read: NoisyGdNonconvex, first: bool) -> list[Draws]:  # noqa: FBT001
    unlearning = Draws(read.noise_std, read.dimension * read.unlearning_steps)
    if not first:
        return [unlearning]
    start = read.noise_std / math.sqrt(2 * read.learning_rate) / math.sqrt(read.weight_decay)
    training = Draws(read.noise_std, read.dimension * read.training_steps)
    return [Draws(start, read.dimension), training, unlearning]


@_draws.register
def _(read: Tracked, first: bool) -> list[Draws]:  # noqa: ARG001, FBT001
    dimension = read.history.recipe.dimension
    drawn = [
        Draws(event.noise_std, dimension * event.steps)
        if isinstance(event, StepsEvent)
        else Draws(event.release, dimension)
        for event in read.history.last_run()
    ]
    return [draws for draws in drawn if draws.noise_std > 0]

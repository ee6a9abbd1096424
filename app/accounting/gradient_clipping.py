"""Gradient clipping with regularisation (Koloskova et al. 2025, equation 3).

    x0 = clip(x, initial_clip)
    x <- x - learning_rate (clip(gradient, gradient_clip) + weight_decay x) + N(0, noise_std^2 I)

Gradients come from retain data only; ``clip`` scales a vector down to a norm. Symbols of the paper:
C0 = initial_clip, C1 = gradient_clip, gamma = learning_rate, lambda = weight_decay,
sigma = noise_std, T = steps. All but C0 and T may vary by step. The step map is
(1 - gamma lambda)-Lipschitz plus a shift of 2 gamma C1, for any loss.

Guarantee: at each epsilon the better of mu-GDP, by the running minimum, and of the reflection
coupling, which takes milliseconds and is computed only where a formula says that it may help.
Neighbouring relation: any two starts. Assumptions: ``TERMS``; norms and noise may be those of any
affine frame that they allow. Source: docs/guarantees.md, section 3.

With a ``dimension`` the guarantee is about what a worker computes in floats; without, about real
numbers, as in the paper. A step's map first rounds the position to the grid and then takes at most
four roundings of 2^-53 of what it handles. ``precision.sampling_residue`` refuses a reach above
2^26 times the noise, so that those are at most 2^-24 of the noise for both worlds together
(docs/guarantees.md, section 11.5).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from app.accounting import gaussian, precision
from app.accounting.chains import reflection
from app.accounting.chains.noisy_chain import (
    NoisyChain,
    NoisyStep,
    Run,
    constant_mu,
    least_delta,
    one_minus_product,
)
from app.accounting.computed_guarantee import computed
from app.accounting.guarantees import GaussianGuarantee, Guarantee, ProfileGuarantee
from app.accounting.precision import Residue, cell_diagonal, noise_norm, sampling_residue
from app.accounting.search import meeting, smallest_noise, smallest_noise_by_secant
from app.accounting.terms import any_start
from app.domain.checks import require_delta, require_non_negative, require_positive, require_steps
from app.domain.errors import CalibrationError, ParameterError
from app.domain.schedules import Schedule, at, varies

NAME = "gradient_clipping"
_WIDTH, _NEAR = 1e-4, 1e-3
_WORTH_A_SEARCH = 1e-3
_ARITHMETIC = 2.0**-24

TERMS = any_start(
    "Koloskova et al. 2025, eq. 3 and Theorem A.9; "
    "Bok, Su & Altschuler 2024 for the trade-off function; Lindvall & Rogers 1986 for the coupling",
)


def with_rounding(step: NoisyStep, *, after_noise_std: float, dimension: int) -> NoisyStep:
    """Return a step, from the grid of the noise before it, with what floats add to its shift."""
    cell = cell_diagonal(dimension=dimension, noise_std=after_noise_std)
    moved = step.contraction * cell + _ARITHMETIC * step.noise_std
    return replace(step, shift=(step.shift + moved) * (1 + 1e-15))


def chain_residue(*, start_norm: float, run: Run, dimension: int) -> Residue:
    """Return what sampler and addition leave after a run of steps with rounding.

    A position is a sum of two parts: one that is bounded, by half the drift of the worlds, and the
    noise of all steps so far, contracted, which is Gaussian.
    """
    bounded = furthest = start_norm
    variance = largest = 0.0
    for step, count in run:
        # Both grow or fall throughout a block, so that its end and its start are the extremes.
        left = step.contraction**count
        bounded = left * bounded + step.shift / 2 * _passes(step.contraction, count)
        variance = left**2 * variance + step.noise_std**2 * _passes(step.contraction**2, count)
        furthest, largest = max(furthest, bounded), max(largest, variance)
    reach = furthest + noise_norm(dimension=dimension, noise_std=math.sqrt(largest))
    return sampling_residue(
        dimension=dimension,
        draws=sum(count for _, count in run),
        reach=reach * (1 + 1e-9),
        noise_std=min(step.noise_std for step, _ in run),
    )


def _passes(contraction: float, count: int) -> float:
    """Return 1 + c + ... + c^(count - 1)."""
    if contraction >= 1:
        return float(count)
    return (1 - contraction**count) / (1 - contraction)


@dataclass(frozen=True)
class CoupledGuarantee(GaussianGuarantee):
    """mu-GDP, as ``GaussianGuarantee``, and beside it the guarantee of a coupling.

    Attributes:
        coupled: returns the coupling's guarantee.
        least: from epsilon to a lower bound on the coupling's delta.
    """

    coupled: Callable[[], Guarantee] = field(compare=False, repr=False, kw_only=True)
    least: Callable[[float], float] = field(compare=False, repr=False, kw_only=True)

    def epsilon(self, *, delta: float) -> float:
        """Return the smaller of both epsilons, rounded up, or raise ``CalibrationError``."""
        delta = require_delta(delta)
        try:
            alone = self.alone().epsilon(delta=delta)
        except CalibrationError:
            return self.coupled().epsilon(delta=delta)
        coupled = None if alone == 0 else self._helpful(alone, delta)
        if coupled is None or coupled.delta(epsilon=alone) > delta:
            return alone
        try:
            return min(alone, coupled.epsilon(delta=delta))
        except CalibrationError:
            return alone

    def delta(self, *, epsilon: float) -> float:
        """Return the smaller of both deltas, rounded up."""
        epsilon = require_non_negative("epsilon", epsilon)
        alone = self.alone().delta(epsilon=epsilon)
        coupled = self._helpful(epsilon, alone)
        return alone if coupled is None else min(alone, coupled.delta(epsilon=epsilon))

    def advantage(self) -> float:
        """Return the smaller of both advantages, rounded up."""
        alone = self.alone().advantage()
        coupled = self._helpful(0.0, alone)
        return alone if coupled is None else min(alone, coupled.advantage())

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether either implies (epsilon, delta)."""
        epsilon, delta = require_non_negative("epsilon", epsilon), require_delta(delta)
        if epsilon > 0 and self.alone().meets(epsilon=epsilon, delta=delta):
            return True
        return self.delta(epsilon=epsilon) <= delta

    def alone(self) -> GaussianGuarantee:
        """Return the Gaussian guarantee without the coupling."""
        return GaussianGuarantee(terms=self.terms, mu=self.mu, slack=self.slack)

    def _helpful(self, epsilon: float, beyond: float) -> Guarantee | None:
        """Return the coupling's guarantee if its delta may lie below ``beyond``."""
        if self.least(epsilon) > beyond:
            return None
        try:
            return self.coupled()
        except CalibrationError:
            return None


@dataclass(frozen=True)
class StepSize:
    """The noise-free part of one step: its contraction, rounded up, and its shift."""

    contraction: float
    shift: float


def step_size(*, gradient_clip: float, learning_rate: float, weight_decay: float) -> StepSize:
    """Return contraction and shift of one step; learning_rate * weight_decay is below 1."""
    gradient_clip = require_non_negative("gradient_clip", gradient_clip)
    learning_rate = require_positive("learning_rate", learning_rate)
    weight_decay = require_non_negative("weight_decay", weight_decay)
    if learning_rate * weight_decay >= 1:
        raise ParameterError("weight_decay", "below 1 / learning_rate")
    return StepSize(
        contraction=one_minus_product(learning_rate, weight_decay),
        shift=2.0 * learning_rate * gradient_clip,
    )


class Odometer:
    """Counts the steps that were taken and says what they are worth."""

    def __init__(
        self, *, initial_clip: float, dimension: int | None = None, cells: int = reflection.CELLS
    ) -> None:
        self._initial_clip = require_positive("initial_clip", initial_clip)
        self._dimension = None if dimension is None else require_steps("dimension", dimension)
        self._chain = NoisyChain(start_distance=2 * self._initial_clip)
        self._coupling: reflection.ReflectionCoupling | None = None
        self._cells = cells
        self._steps: list[NoisyStep] = []
        self._times: list[int] = []
        self._last: tuple[StepSize, float, float] | None = None

    def step(self, size: StepSize, noise_std: float) -> float:
        """Count one step and return mu so far."""
        last = self._last
        if last is None or last[0] is not size or last[1] != noise_std or last[2] != noise_std:
            self._begin(size, noise_std)
        self._times[-1] += 1
        step = self._steps[-1]
        return self._chain.step(step.contraction, step.shift, step.noise_std)

    def _begin(self, size: StepSize, noise_std: float) -> None:
        """Begin a row of equal steps, unless this one equals the last."""
        after = noise_std if self._last is None else self._last[1]
        self._last = (size, noise_std, after)
        step = _noisy_step(size, noise_std, after_noise_std=after, dimension=self._dimension)
        if not self._steps or self._steps[-1] != step:
            self._steps.append(step)
            self._times.append(0)

    @property
    def steps(self) -> int:
        """How many steps were counted."""
        return self._chain.steps

    @property
    def mu(self) -> float:
        """The running minimum, infinite before the first step; without the sampler's residue."""
        return self._chain.mu

    def guarantee(self) -> CoupledGuarantee:
        """Return what ``account`` returns for the steps so far, which must be at least one."""
        mu = self._chain.certified_mu()
        run = tuple(zip(self._steps, self._times, strict=True))
        steps = self.steps
        return _guarantee(
            initial_clip=self._initial_clip,
            dimension=self._dimension,
            run=run,
            mu=_mu_of(self._initial_clip, run[0]) if len(run) == 1 else mu,
            apart=lambda: self._followed(run).apart(steps=steps),
        )

    def _followed(self, run: Run) -> reflection.ReflectionCoupling:
        if self._coupling is None:
            start = 2 * self._initial_clip
            self._coupling = reflection.ReflectionCoupling(start_distance=start, cells=self._cells)
        self._coupling.follow(run)
        return self._coupling

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether the steps so far imply (epsilon, delta)."""
        return self.steps > 0 and self.guarantee().meets(epsilon=epsilon, delta=delta)


def account(
    *,
    initial_clip: float,
    gradient_clip: Schedule,
    learning_rate: Schedule,
    weight_decay: Schedule,
    noise_std: Schedule,
    steps: int,
    dimension: int | None = None,
    cells: int = reflection.CELLS,
) -> CoupledGuarantee:
    """Return the guarantee of ``steps`` steps; each schedule is one number or one per step.

    With few ``cells`` the coupling is quicker, and its delta a little larger.
    """
    initial_clip = require_positive("initial_clip", initial_clip)
    steps = require_steps("steps", steps)
    schedules = {
        "gradient_clip": gradient_clip,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "noise_std": noise_std,
    }
    for name, schedule in schedules.items():
        if varies(schedule) and not (isinstance(schedule, Sequence) and len(schedule) == steps):
            raise ParameterError(name, f"one number or {steps} of them, one per step")
    if any(map(varies, schedules.values())):
        odometer = Odometer(initial_clip=initial_clip, dimension=dimension, cells=cells)
        for step in range(steps):
            numbers = {name: at(schedule, step) for name, schedule in schedules.items()}
            noise = numbers.pop("noise_std")
            odometer.step(step_size(**numbers), noise)
        return odometer.guarantee()
    numbers = {name: at(schedule, 0) for name, schedule in schedules.items()}
    noise = numbers.pop("noise_std")
    constant = _noisy_step(step_size(**numbers), noise, after_noise_std=noise, dimension=dimension)
    run = ((constant, steps),)
    return _guarantee(
        initial_clip=initial_clip,
        dimension=dimension,
        run=run,
        mu=_mu_of(initial_clip, run[0]),
        apart=lambda: reflection.apart_after(2 * initial_clip, run, cells=cells),
    )


def calibrate(
    *,
    epsilon: float,
    delta: float,
    initial_clip: float,
    gradient_clip: Schedule,
    learning_rate: Schedule,
    weight_decay: Schedule,
    steps: int,
    dimension: int | None = None,
) -> float:
    """Return a constant noise_std that reaches (epsilon, delta), the smallest but for rounding up.

    The running minimum alone is inversely proportional to the noise, in real arithmetic; where the
    coupling does with less, the answer is at most 1e-4 above the smallest.
    """
    given = partial(
        account,
        initial_clip=initial_clip,
        gradient_clip=gradient_clip,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        steps=steps,
    )

    def guarantee(noise_std: float, cells: int = reflection.CELLS) -> CoupledGuarantee:
        return given(noise_std=noise_std, dimension=dimension, cells=cells)

    target = gaussian.mu_of(epsilon=epsilon, delta=delta)
    # The margin covers the rounding of an odometer that walks the same steps.
    noise = given(noise_std=1.0).mu / target * (1 + 1e-13 + 4e-15 * steps)
    noise = math.nextafter(noise, math.inf)
    if dimension is not None:
        meets = meeting(lambda std: guarantee(std).alone(), epsilon=epsilon, delta=delta)
        noise = smallest_noise(meets, scale=noise)
    return _less_by_coupling(guarantee, noise, epsilon, delta)


def _noisy_step(
    size: StepSize, noise_std: float, *, after_noise_std: float, dimension: int | None
) -> NoisyStep:
    step = NoisyStep(size.contraction, size.shift, noise_std)
    if dimension is None:
        return step
    return with_rounding(step, after_noise_std=after_noise_std, dimension=dimension)


def _mu_of(initial_clip: float, block: tuple[NoisyStep, int]) -> float:
    step, count = block
    return constant_mu(
        start_distance=2 * initial_clip,
        contraction=step.contraction,
        shift=step.shift,
        noise_std=step.noise_std,
        steps=count,
    )


def _guarantee(
    *,
    initial_clip: float,
    dimension: int | None,
    run: Run,
    mu: float,
    apart: Callable[[], reflection.Uncoupled],
) -> CoupledGuarantee:
    """Return the guarantee of a run whose steps have their rounding in them already."""
    residue = precision.NONE
    if dimension is not None:
        residue = chain_residue(start_norm=initial_clip, run=run, dimension=dimension)

    def coupled() -> Guarantee:
        worlds = apart()
        profile = ProfileGuarantee(
            terms=TERMS,
            delta_at=lambda epsilon: worlds.delta(epsilon=epsilon),
            epsilon_at=lambda delta: worlds.epsilon(delta=delta),
        )
        return computed(profile, residue)

    alone = computed(GaussianGuarantee(terms=TERMS, mu=mu), residue)
    return CoupledGuarantee(
        terms=TERMS,
        mu=alone.mu,
        slack=alone.slack,
        coupled=coupled,
        least=lambda epsilon: least_delta(run=run, epsilon=epsilon),
    )


def _less_by_coupling(
    guarantee: Callable[[float, int], CoupledGuarantee],
    enough: float,
    epsilon: float,
    delta: float,
) -> float:
    """Return the noise that the coupling needs for a target, if that is less than ``enough``."""

    def excess(noise_std: float, cells: int = reflection.CELLS) -> float:
        try:
            coupled = guarantee(noise_std, cells).coupled()
        except (CalibrationError, ParameterError):
            return math.inf
        return excess_of(coupled.delta(epsilon=epsilon), delta)

    trial = enough * (1 - _WORTH_A_SEARCH)
    try:
        hopeless = guarantee(trial, reflection.CELLS).least(epsilon) > delta
    except ParameterError:
        return enough
    if hopeless or excess(trial) > 0:
        return enough
    near = smallest_noise_by_secant(
        lambda noise_std: excess(noise_std, reflection.SEARCH_CELLS),
        scale=trial,
        relative_width=_NEAR,
    )
    return smallest_noise_by_secant(excess, scale=near, relative_width=_WIDTH)


def excess_of(found: float, delta: float) -> float:
    """Return how far a delta is beyond a target: not above 0 where it is met.

    The logarithm of delta falls about in proportion to the steps, so that its own logarithm is
    nearly straight.
    """
    return math.log(math.log(delta) / math.log(min(max(found, 1e-300), 1 - 1e-9)))

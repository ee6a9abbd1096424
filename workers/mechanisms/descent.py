"""Gradient descent on a regularised loss, with noise at every step or once at its end.

    x <- project(x - learning_rate (g + weight_decay x) + N(0, noise_std^2 I))

What every mechanism of tracked training has in common (MATH.md sections 5 and 7); they differ in
their accountants. g is the gradient of the mean loss over a fixed batch, divided by the batch size
that it had before records left. A step is computed in float64; noise comes after the move, and
their sum is rounded to the public grid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from app.accounting.guarantees import Guarantee
from app.accounting.noisy_chain import one_minus_product
from app.domain.errors import PlanError, TargetNotMetError
from workers.mechanisms.vectors import clip_, move_
from workers.noise import NoiseSource

AccountOf = Callable[[int], Guarantee]
"""What so many steps guarantee."""


@dataclass(frozen=True)
class Descent:
    """One step of it.

    Attributes:
        learning_rate: eta.
        weight_decay: lambda.
        noise_std: per coordinate and step; 0 for none.
        radius: of the ball around 0 to which weights are projected, or None.
    """

    learning_rate: float
    weight_decay: float
    noise_std: float = 0.0
    radius: float | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, float]) -> "Descent":
        """Return the descent that a plan's settings describe."""
        return cls(
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            noise_std=settings.get("noise_std", 0.0),
            radius=settings.get("radius"),
        )

    def step_(self, position: torch.Tensor, gradient: torch.Tensor, noise: NoiseSource) -> None:
        """Take one step in place; ``position`` is float64 [size], ``gradient`` of that size."""
        contraction = one_minus_product(self.learning_rate, self.weight_decay)
        move_(position, gradient, contraction=contraction, rate=self.learning_rate)
        if self.noise_std > 0:
            noise.add_(position, self.noise_std)
        if self.radius is not None:
            clip_(position, self.radius)


@dataclass(frozen=True)
class NoisyDescent:
    """Noise at every step, until the accountant says that the target is met.

    Attributes:
        descent: one step.
        steps: how many the plan expects; a run takes no fewer.
        account: the accountant.
        dimension: how many weights the accountant was told of; None where it does not matter.
    """

    descent: Descent
    steps: int
    account: AccountOf
    dimension: int | None = None

    def begin(
        self,
        position: torch.Tensor,
        *,
        noise: NoiseSource,
        epsilon: float,
        delta: float,
    ) -> "NoisyDescentRun":
        """Return the run; the start stays as it is.

        Raises:
            TargetNotMetError: ``steps`` steps do not meet (epsilon, delta).
            PlanError: the weights are not as many as the accountant was told.
        """
        if self.dimension not in (None, position.numel()):
            raise PlanError(f"dimension must be {position.numel()}, not {self.dimension}")
        _require_met(self.account(self.steps), self.steps, epsilon, delta)
        return NoisyDescentRun(self, noise=noise, epsilon=epsilon, delta=delta)


class NoisyDescentRun:
    """One run: counts each step it takes, and asks the accountant what they are worth."""

    def __init__(
        self, mechanism: NoisyDescent, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> None:
        self._mechanism = mechanism
        self._noise = noise
        self._target = (epsilon, delta)
        self.steps = 0

    @property
    def met(self) -> bool:
        """Whether the steps taken meet the target."""
        if self.steps < self._mechanism.steps:
            return False
        epsilon, delta = self._target
        return self._mechanism.account(self.steps).meets(epsilon=epsilon, delta=delta)

    def guarantee(self) -> Guarantee | None:
        """Return what the steps taken guarantee; None before any that the accountant counts."""
        if self.steps == 0 < self._mechanism.steps:
            return None
        return self._mechanism.account(self.steps)

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step in place."""
        self._mechanism.descent.step_(position, gradient, self._noise)
        self.steps += 1


@dataclass(frozen=True)
class ReleasedDescent:
    """Steps without noise, and noise once at their end; without any step the start is released.

    Attributes:
        descent: one step, noise-free.
        release_noise_std: per coordinate, at release.
        steps: how many steps the plan takes; may be 0.
        account: the accountant, of so many steps and the release.
    """

    descent: Descent
    release_noise_std: float
    steps: int
    account: AccountOf

    def begin(
        self, position: torch.Tensor, *, noise: NoiseSource, epsilon: float, delta: float
    ) -> "ReleasedDescentRun":
        """Return the run; without steps, ``position`` (float64 [size]) gets its noise here.

        Raises:
            TargetNotMetError: the release does not meet (epsilon, delta). Nothing was changed.
        """
        _require_met(self.account(self.steps), self.steps, epsilon, delta)
        run = ReleasedDescentRun(self, noise=noise)
        run.release_if_due(position)
        return run


class ReleasedDescentRun:
    """One run; nothing is guaranteed before its noise is added."""

    def __init__(self, mechanism: ReleasedDescent, *, noise: NoiseSource) -> None:
        self._mechanism = mechanism
        self._noise = noise
        self.steps = 0
        self.met = False

    def guarantee(self) -> Guarantee | None:
        """Return what the release guarantees; None before it."""
        return self._mechanism.account(self.steps) if self.met else None

    def step(self, position: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take one step in place."""
        self._mechanism.descent.step_(position, gradient, self._noise)
        self.steps += 1
        self.release_if_due(position)

    def release_if_due(self, position: torch.Tensor) -> None:
        """Add the noise once all steps are taken."""
        if self.steps == self._mechanism.steps:
            self._noise.add_(position, self._mechanism.release_noise_std)
            self.met = True


def _require_met(guarantee: Guarantee, steps: int, epsilon: float, delta: float) -> None:
    if not guarantee.meets(epsilon=epsilon, delta=delta):
        raise TargetNotMetError(
            f"{steps} steps reach epsilon {guarantee.epsilon(delta=delta):.4g} at delta "
            f"{delta:.3g}, not {epsilon:.4g}"
        )

"""Progress of a run: the guarantee before the target is met, the loss after it."""

import math
import time
from collections.abc import Callable

import torch

from app.accounting.guarantees import Guarantee, PointGuarantee
from app.domain.errors import CalibrationError
from app.domain.plan import Plan
from workers.leases.lease import Lease
from workers.seal.sealed import SealedProgress
from workers.training.loop import TrainingProgress
from workers.training.noisy_phase import NoisyProgress

_INTERVAL_S = 0.2
_LARGEST_SHARE = 1 / 3


class Throttle:
    """Allows one report per interval, and always that of the last step.

    Reports that take long are rarer, so that at most a third of a run's time goes to them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = -math.inf

    def report(self, step: int, steps: int, how: Callable[[], None]) -> None:
        """Report a step, if it is time."""
        begun = self._clock()
        if step < steps and begun < self._next:
            return
        how()
        taken = self._clock() - begun
        self._next = begun + max(_INTERVAL_S, taken / _LARGEST_SHARE)


def step_reporter(lease: Lease) -> SealedProgress:
    """Return a callback that reports only the step: no loss before the target is met."""

    def report(step: int, steps: int) -> None:
        lease.report(step=step, total_steps=steps)

    return report


def epsilon_reporter(lease: Lease, plan: Plan) -> NoisyProgress:
    """Return a callback that reports only the step and, as often as it is shown, the epsilon."""
    throttle = Throttle()

    def now(step: int, steps: int, guarantee: Callable[[], Guarantee | None]) -> None:
        epsilon = _epsilon_at(guarantee(), plan.delta)
        lease.report(step=step, total_steps=steps, epsilon=epsilon)

    def report(step: int, steps: int, guarantee: Callable[[], Guarantee | None]) -> None:
        lease.check()
        throttle.report(step, steps, lambda: now(step, steps, guarantee))

    return report


def _epsilon_at(guarantee: Guarantee | None, delta: float) -> float | None:
    """Return epsilon at ``delta``; None if the steps so far have no finite one."""
    if guarantee is None:
        return None
    if isinstance(guarantee, PointGuarantee) and guarantee.at_delta > delta:
        return None
    try:
        return guarantee.epsilon(delta=delta)
    except CalibrationError:
        return None


def loss_reporter(lease: Lease) -> TrainingProgress:
    """Return a callback that reports step and loss; only for weights that may be published."""
    throttle = Throttle()

    def report(step: int, steps: int, loss: torch.Tensor) -> None:
        lease.check()
        throttle.report(
            step, steps, lambda: lease.report(step=step, total_steps=steps, loss=float(loss))
        )

    return report

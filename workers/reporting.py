"""Progress of a run: the guarantee before the target is met, the loss after it."""

import time

import torch

from app.accounting.guarantees import Guarantee, PointGuarantee
from app.domain.errors import CalibrationError
from app.domain.plan import Plan
from workers.lease import Lease
from workers.noisy_phase import NoisyProgress
from workers.seal.sealed import SealedProgress
from workers.training.loop import TrainingProgress

_INTERVAL_S = 0.2


class _Throttle:
    """Allows one report per interval, and always the last step."""

    def __init__(self) -> None:
        self._last = -_INTERVAL_S

    def due(self, step: int, steps: int) -> bool:
        now = time.monotonic()
        if step < steps and now - self._last < _INTERVAL_S:
            return False
        self._last = now
        return True


def step_reporter(lease: Lease) -> SealedProgress:
    """Return a callback that reports only the step: no loss before the target is met."""

    def report(step: int, steps: int) -> None:
        lease.report(step=step, total_steps=steps)

    return report


def epsilon_reporter(lease: Lease, plan: Plan) -> NoisyProgress:
    """Return a callback that reports only the step and the epsilon so far."""
    throttle = _Throttle()

    def report(step: int, steps: int, guarantee: Guarantee | None) -> None:
        lease.check()
        if throttle.due(step, steps):
            epsilon = _epsilon_at(guarantee, plan.delta)
            lease.report(step=step, total_steps=steps, epsilon=epsilon)

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
    throttle = _Throttle()

    def report(step: int, steps: int, loss: torch.Tensor) -> None:
        lease.check()
        if throttle.due(step, steps):
            lease.report(step=step, total_steps=steps, loss=float(loss))

    return report

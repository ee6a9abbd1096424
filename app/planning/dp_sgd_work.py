"""Which accountings of DP-SGD a quote refuses: they would take long, and guarantee next to nothing.

The accountant discretises the privacy loss of one step and composes that numerically, in cells so
wide that it takes about a second at most. Very wide ones tell nothing any more.
"""

from typing import Any

from app.accounting import dp_sgd
from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.errors import PlanError
from app.domain.extras import ACCOUNTING, loaded

MOST_STEPS = 1_000_000
# Nats: what a cell may add to epsilon for each step of a release that takes few.
_COARSEST = 0.25
# A cell's probability is a difference of deltas over its width; their roundings only count upwards:
# so much is added to one step's total for each cell, over the width. Where all steps together gain
# a factor of e, the composition tells little, and its range, which is what it costs, grows.
_ROUNDING_PER_CELL = 3e-17
_USUAL_NOISE = 1.0


def refuse_slow_accounting(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where an accounting that tells anything takes more than some seconds."""
    noise = require_positive("noise_multiplier", noise_multiplier)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = _checked_steps(steps)
    group = dp_sgd.require_group(group_size)
    if rate == 1:  # one Gaussian: a formula
        return
    width = _width(noise, rate, steps, group)
    _refuse_roundings(noise, rate, steps, group)
    if not width <= _COARSEST:
        raise PlanError(
            "accounting for so little noise and so many forgotten records takes too long for a "
            "quote: raise the noise or lower capacity"
        )


def refuse_slow_calibration(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where the search for the noise begins with a refused accounting."""
    rate = require_fraction("sampling_rate", sampling_rate)
    group = dp_sgd.require_group(group_size)
    guess = dp_sgd.first_guess(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=rate,
        steps=_checked_steps(steps),
        group_size=group,
    )
    refuse_slow_accounting(
        noise_multiplier=guess, sampling_rate=rate, steps=steps, group_size=group
    )
    _refuse_roundings(max(guess, _USUAL_NOISE), rate, steps, group)


def _refuse_roundings(noise: float, rate: float, steps: int, group: int) -> None:
    if rate == 1:
        return
    width = _width(noise, rate, steps, group)
    cells = float(_resolutions().range_of_loss(noise, rate, group)) / width
    if steps * cells * _ROUNDING_PER_CELL > width:
        raise PlanError(
            "so many steps, each with so little chance to take a record, cannot be accounted for "
            "in floats: train in fewer steps, with larger batches"
        )


def _width(noise: float, rate: float, steps: int, group: int) -> float:
    width = _resolutions().resolution(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, group_size=group
    )
    return float(width)


def _resolutions() -> Any:  # noqa: ANN401 - a module
    return loaded("app.accounting.mixture_of_gaussians", extra=ACCOUNTING)


def _checked_steps(steps: int) -> int:
    steps = require_steps("steps", steps)
    if steps > MOST_STEPS:
        raise PlanError(
            f"accounting for more than {MOST_STEPS:,} steps of DP-SGD takes too long for a quote: "
            "train in fewer steps, with larger batches"
        )
    return steps

"""How long an accounting of DP-SGD would take: quotes must not keep a caller waiting for minutes.

The accountant discretises the privacy loss of one step and composes that numerically. Its time
grows with the range of that loss, so where the noise is small for the group, and with the steps.
"""

import math

from app.accounting import dp_sgd
from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.errors import ParameterError, PlanError

MOST_STEPS = 1_000_000
# Cells of the discretised loss of a step, times what a group adds to each: some 4 s.
MOST_CELLS = 125_000
_GROUP_OF_TWICE_THE_WORK = 60
# Cells of the loss of all steps together; 50 million take some 10 s.
MOST_COMPOSED_CELLS = 10_000_000
# The normal distribution and the binomial are cut off where less than e^-50 is left.
_TAIL_STDS = 10.0
_LOG_TAIL = -50.0


def refuse_slow_accounting(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where one accounting takes more than a few seconds.

    Parameters outside their range raise ``ParameterError``, as in the accountant.
    """
    noise = require_positive("noise_multiplier", noise_multiplier)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = _checked_steps(steps)
    group = _checked_group(group_size)
    _refuse_many_cells(noise, rate, steps, group, dp_sgd.COARSE_RESOLUTION)
    if dp_sgd.needs_fine_resolution(noise, rate, steps, group):
        _refuse_many_cells(noise, rate, steps, group, dp_sgd.RESOLUTION)


def refuse_slow_calibration(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where the search for the noise takes more than a few seconds.

    An accounting takes longest where the noise is least: at the first guess of the search, or below
    it by fours for as long as that meets the target.
    """
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = _checked_steps(steps)
    group = _checked_group(group_size)
    noise = dp_sgd.first_guess(
        epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps, group_size=group
    )
    while noise >= dp_sgd.LEAST_NOISE_MULTIPLIER:
        _refuse_many_cells(noise, rate, steps, group, dp_sgd.COARSE_RESOLUTION)
        coarse = dp_sgd.composed(noise, rate, steps, group, dp_sgd.COARSE_RESOLUTION)
        if coarse.get_epsilon(delta) > epsilon:
            return
        noise /= 4


def _checked_steps(steps: int) -> int:
    steps = require_steps("steps", steps)
    if steps > MOST_STEPS:
        raise PlanError(
            f"accounting for more than {MOST_STEPS:,} steps of DP-SGD takes too long for a quote: "
            "train in fewer steps, with larger batches"
        )
    return steps


def _checked_group(group_size: int) -> int:
    group = require_steps("group_size", group_size)
    if group > dp_sgd.LARGEST_GROUP:
        raise ParameterError("group_size", f"at most {dp_sgd.LARGEST_GROUP}")
    return group


def _refuse_many_cells(
    noise: float, rate: float, steps: int, group: int, resolution: float
) -> None:
    single, composed = _cells(noise, rate, steps, group, resolution)
    single *= 1 + group / _GROUP_OF_TWICE_THE_WORK
    if not (single <= MOST_CELLS and composed <= MOST_COMPOSED_CELLS):
        raise PlanError(
            "accounting for so little noise and so many forgotten records takes too long for a "
            "quote: raise the noise or lower group_size"
        )


def _cells(
    noise: float, rate: float, steps: int, group: int, resolution: float
) -> tuple[float, float]:
    """Return how many cells hold the privacy loss of one step, and of all together."""
    if rate == 1:  # Gaussians compose to one
        mu = group * math.sqrt(steps) / noise
        cells = (mu**2 / 2 + 2 * _TAIL_STDS * mu) / resolution
        return cells, cells
    squared_sum = (group * rate) ** 2 + group * rate * (1 - rate)
    expected_loss = squared_sum / (2 * noise**2)  # at most, as the divergence is convex
    single = _range_of_loss(noise, rate, group)
    return single / resolution, (steps * expected_loss + single) / resolution


def _range_of_loss(noise: float, rate: float, group: int) -> float:
    """Return the range of the loss of one step: the mixture against no member of the group."""
    chances = [_log_chance(group, taken, rate) for taken in range(group + 1)]
    likely = [taken for taken in range(group + 1) if chances[taken] > _LOG_TAIL]
    largest = max(likely, default=0) + _TAIL_STDS * noise
    losses = [
        chances[taken] + taken * (2 * largest - taken) / (2 * noise**2)
        for taken in range(group + 1)
    ]
    return max(losses) + math.log(len(losses)) - chances[0]


def _log_chance(group: int, taken: int, rate: float) -> float:
    ways = math.log(math.comb(group, taken))
    return ways + taken * math.log(rate) + (group - taken) * math.log1p(-rate)

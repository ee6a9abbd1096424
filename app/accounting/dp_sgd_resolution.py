"""How finely the privacy loss of a step of DP-SGD is discretised before it is composed.

A cell rounds the loss up, so any width is valid: a wide one costs tightness, a narrow one time.
"""

import math

import numpy as np

_COARSEST_NEEDED = 1e-3
# Cells a standard deviation of the loss of one step: the composed epsilon is then within 0.1 %.
_CELLS_PER_STD = 16
# Cells of the loss of a step, numbers computed for them (cells times members), and cells of all
# steps together: a quarter of a second each.
_MOST_CELLS = 300_000
_MOST_NUMBERS = 2_000_000
_MOST_COMPOSED_CELLS = 1_000_000
# The normal distribution and the binomial are cut off where less than e^-50 is left.
_TAIL_STDS = 10.0
_LOG_TAIL = -50.0


def resolution(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> float:
    """Return the width of a cell, in nats: as fine as is useful, or else as is quick."""
    needed = min(
        _COARSEST_NEEDED, _loss_std(noise_multiplier, sampling_rate, group_size) / _CELLS_PER_STD
    )
    single = range_of_loss(noise_multiplier, sampling_rate, group_size)
    squared_sum = (group_size * sampling_rate) ** 2
    squared_sum += group_size * sampling_rate * (1 - sampling_rate)
    expected = squared_sum / (2 * noise_multiplier**2)  # at most, as the divergence is convex
    return max(
        needed,
        single / _MOST_CELLS,
        single * (group_size + 1) / _MOST_NUMBERS,
        (steps * expected + single) / _MOST_COMPOSED_CELLS,
    )


def _loss_std(noise: float, rate: float, group: int) -> float:
    """Return the root of the chi-squared divergence of a step: the loss's deviation if small."""
    chances = np.exp([_log_chance(group, taken, rate) for taken in range(group + 1)])
    taken = np.arange(group + 1.0)
    with np.errstate(over="ignore"):
        excess = np.expm1(np.outer(taken, taken) / noise**2)
    return math.sqrt(np.sum(np.outer(chances, chances) * np.minimum(excess, 1e300)))


def range_of_loss(noise: float, rate: float, group: int) -> float:
    """Return the range of one step's loss, in nats: the mixture against no member of the group."""
    taken = np.arange(group + 1.0)
    chances = np.array([_log_chance(group, count, rate) for count in range(group + 1)])
    most = taken[chances > _LOG_TAIL].max(initial=0.0)
    lowest, highest = (
        float(np.logaddexp.reduce(chances + taken * (2 * point - taken) / (2 * noise**2)))
        for point in (-_TAIL_STDS * noise, most + _TAIL_STDS * noise)
    )
    return highest - lowest


def _log_chance(group: int, taken: int, rate: float) -> float:
    ways = math.log(math.comb(group, taken))
    return ways + taken * math.log(rate) + (group - taken) * math.log1p(-rate)

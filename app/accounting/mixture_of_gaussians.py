"""Steps dominated by a mixture of Gaussians, composed by dp_accounting.

dp_accounting inverts the privacy loss by bisecting one loss at a time in Python, which takes nearly
all of an accounting. Here Newton's method runs on arrays. The hockey-stick divergence is a maximum
over thresholds, so a threshold that is off costs it only the square of that error; these are closer
than the library's 1e-6.
"""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from app.domain.errors import CalibrationError

Floats = npt.NDArray[np.float64]

_NEWTON_STEPS = 60
_CLOSE = 1e-12  # relative to the loss
_NUMBERS_AT_ONCE = 1 << 18  # what fits a cache
# How finely a step's loss is discretised. A cell rounds it up, so any width is valid: a wide one
# costs tightness, a narrow one time.
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


class MixtureLoss(privacy_loss_mechanism.MixtureGaussianPrivacyLoss):  # type: ignore[misc]
    """dp_accounting's loss of a mixture, inverted on arrays."""

    def get_delta_for_epsilon(self, epsilon: Floats) -> Floats:
        """Return the hockey-stick divergence at each epsilon: shape (n,), epsilons growing."""
        at = self.inverse_privacy_losses(epsilon)
        deltas = self.mu_upper_cdf(at) - np.exp(epsilon + self.mu_lower_log_cdf(at))
        return np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]

    def inverse_privacy_losses(self, privacy_losses: Floats, precision: float = 0.0) -> Floats:  # noqa: ARG002
        """Return where each loss is taken, in the noise's unit; infinite where none is."""
        removed = self.adjacency_type == privacy_loss_mechanism.AdjacencyType.REMOVE
        sign = -1.0 if removed else 1.0
        return sign * self._where_log_ratio_is(-sign * np.asarray(privacy_losses, float))

    def _where_log_ratio_is(self, targets: Floats) -> Floats:
        """Return t where log sum_i p_i exp(s_i t / var - s_i^2 / (2 var)) is each target."""
        moved = self.sensitivities > 0
        slopes = self.sensitivities[moved] / self._variance
        offsets = self._log_sampling_probs[moved] - slopes * self.sensitivities[moved] / 2
        unmoved = self._log_sampling_probs[~moved]
        floor = unmoved[0] if unmoved.size else -np.inf
        points = np.full(targets.shape, -np.inf)
        reached = np.flatnonzero(targets > floor)
        rest = targets[reached] + np.log(-np.expm1(floor - targets[reached]))
        rows = max(1, _NUMBERS_AT_ONCE // slopes.size)
        for start in range(0, reached.size, rows):
            part = slice(start, start + rows)
            points[reached[part]] = _inverse_log_sum(offsets, slopes, rest[part])
        return points


def composed(
    *,
    noise_multiplier: float,
    sensitivities: list[float],
    chances: list[float],
    steps: int,
    resolution: float,
) -> Any:  # noqa: ANN401 - dp_accounting has no types
    """Return the privacy loss distribution of ``steps`` steps, rounded up (connect the dots)."""

    def one_way(adjacency: Any) -> Any:  # noqa: ANN401
        loss = MixtureLoss(noise_multiplier, sensitivities, chances, adjacency_type=adjacency)
        bounds = loss.connect_dots_bounds()
        lowest = int(np.floor(bounds.epsilon_lower / resolution))
        highest = int(np.ceil(bounds.epsilon_upper / resolution))
        deltas = loss.get_delta_for_epsilon(
            np.arange(lowest, highest + 1, dtype=np.float64) * resolution
        )
        cells = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            resolution, lowest, highest, deltas
        )
        return cells.to_dense_pmf()  # a sparse one is convolved in Python

    ways = privacy_loss_mechanism.AdjacencyType
    return PrivacyLossDistribution(one_way(ways.REMOVE), one_way(ways.ADD)).self_compose(steps)


def _inverse_log_sum(offsets: Floats, slopes: Floats, targets: Floats) -> Floats:
    """Return t where log sum_i exp(offset_i + slope_i t) is each target.

    The sum is convex and grows, so Newton's method falls to the root from a point beyond it; where
    one summand alone reaches the target is such a point.
    """
    points = cast("Floats", np.min((targets[:, None] - offsets) / slopes, axis=1))
    far = np.arange(targets.size)
    for _ in range(_NEWTON_STEPS):
        terms = offsets + slopes * points[far, None]
        largest = terms.max(axis=1)
        weights = np.exp(terms - largest[:, None])
        total = weights.sum(axis=1)
        excess = largest + np.log(total) - targets[far]
        points[far] -= excess * total / (weights @ slopes)
        far = far[np.abs(excess) > _CLOSE * np.maximum(1.0, np.abs(targets[far]))]
        if not far.size:
            return points
    raise CalibrationError("the privacy loss could not be inverted")


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

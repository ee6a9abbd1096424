"""Steps dominated by a mixture of Gaussians, composed by dp_accounting.

dp_accounting inverts the privacy loss by bisecting one loss at a time in Python, which takes nearly
all of an accounting. Here Newton's method runs on arrays. The hockey-stick divergence is a maximum
over thresholds, so a threshold that is off costs it only the square of that error; these are closer
than the library's 1e-6.
"""

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

"""Search for the smallest noise, or epsilon, that meets a target, ending on the safe side."""

import math
from collections.abc import Callable
from typing import Protocol

from app.domain.errors import CalibrationError, ParameterError

_HALVINGS = 200
_EVALUATIONS = 60
_LONGEST_STEP = math.log(8)


class MeetsTargets(Protocol):
    """A guarantee, as far as a search needs it."""

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Say whether it implies (epsilon, delta)."""


def meeting(
    account: Callable[[float], MeetsTargets],
    *,
    epsilon: float,
    delta: float,
    refused: frozenset[str] = frozenset({"noise_std"}),
) -> Callable[[float], bool]:
    """Return a test of a noise: whether its guarantee, by ``account``, implies (epsilon, delta).

    Noise for which ``account`` raises ``CalibrationError``, or ``ParameterError`` about one of the
    parameters ``refused``, does not.
    """

    def meets(noise: float) -> bool:
        try:
            return account(noise).meets(epsilon=epsilon, delta=delta)
        except CalibrationError:
            return False
        except ParameterError as error:
            if error.name not in refused:
                raise
            return False

    return meets


def smallest_noise(
    meets: Callable[[float], bool], *, scale: float, relative_width: float = 1e-10
) -> float:
    """Return the smallest noise for which ``meets`` holds, rounded up to one that does.

    ``meets`` must go from false to true once as the noise grows. ``scale`` is a first guess,
    ``relative_width`` how far above the smallest the answer may lie.
    """
    high = scale
    while not meets(high):
        high *= 4
        if not high < scale * 1e9:
            raise CalibrationError("no noise of reasonable size meets the target")
    low = high / 4
    while meets(low):
        high, low = low, low / 4
        if not low > scale * 1e-9:
            raise CalibrationError("the target is met without noise of reasonable size")
    for _ in range(_HALVINGS):
        if high <= low * (1 + relative_width):
            return high
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            return high
        if meets(middle):
            high = middle
        else:
            low = middle
    raise CalibrationError("the search for the noise did not converge")


def smallest(meets: Callable[[float], bool], *, highest: float, width: float = 1e-14) -> float:
    """Return the smallest number from 0 to ``highest`` for which ``meets`` holds, rounded up.

    ``meets`` holds at ``highest`` and goes from false to true once. ``width`` is how far above the
    smallest the answer may lie, relative to it.
    """
    if meets(0.0):
        return 0.0
    low, high = 0.0, highest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if high - low <= width * high or not low < middle < high:
            break
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def largest(meets: Callable[[int], bool], *, most: int, guess: int = 0) -> int:
    """Return the largest whole number up to ``most`` for which ``meets`` holds; 0 if 1 does not.

    ``meets`` goes from true to false once. The search begins at ``guess`` and strides away from it.
    """
    low, high = 0, most + 1  # holds, or is 0; does not hold, or is out of range
    point, stride = min(max(guess, 1), most), 1
    while high - low > 1:
        if meets(point):
            low, point = point, point + stride
        else:
            high, point = point, point - stride
        stride *= 2
        if not low < point < high:
            point = (low + high) // 2
    return low


def smallest_noise_by_secant(
    excess: Callable[[float], float], *, scale: float, relative_width: float
) -> float:
    """Return the smallest noise for which ``excess`` is not positive, rounded up to one such.

    For targets that take long to evaluate: ``excess`` falls about as -log(noise), and lines through
    its last values lead to the root in few of them. ``scale`` is a first guess, ``relative_width``
    how far above the smallest the answer may lie.
    """
    low = high = last = None  # (log noise, excess): too little, enough, and the one before
    width = math.log1p(relative_width)
    point = math.log(scale)
    for evaluation in range(_EVALUATIONS):
        if abs(point - math.log(scale)) > math.log(1e9):
            raise CalibrationError("no noise of reasonable size meets the target")
        found = (point, excess(math.exp(point)))
        low, high = (low, found) if found[1] <= 0 else (found, high)
        if low is None or high is None:
            step = _step(last, found, width)
            last = found
            point += step
        elif high[0] - low[0] <= width:
            return math.exp(high[0])
        else:
            point = _between(low, high, width, halve=evaluation % 4 == 3)
    raise CalibrationError("the search for the noise did not converge")


def _step(last: tuple[float, float] | None, found: tuple[float, float], width: float) -> float:
    """Return how far to go on where both points are on the same side of the root."""
    if last is None:
        step = abs(found[1])
    else:
        step = abs(found[1]) / _slope(*sorted((last, found)))
        if not abs(found[1]) < abs(last[1]) / 2:  # it is flat here
            step = max(step, 2 * abs(found[0] - last[0]))
    return math.copysign(min(step + width / 3, _LONGEST_STEP), found[1])


def _between(
    low: tuple[float, float], high: tuple[float, float], width: float, *, halve: bool
) -> float:
    """Return the next point: on the far side of the line's root from the nearer end."""
    middle = (low[0] + high[0]) / 2
    if halve or not low[1] - high[1] < math.inf:
        return middle
    root = high[0] + high[1] / _slope(low, high)
    root += width / 3 if root < middle else -width / 3
    return min(max(root, low[0] + width / 3), high[0] - width / 3)


def _slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return how steeply the excess falls between two points, within reason."""
    fall = (first[1] - second[1]) / (second[0] - first[0])
    return min(max(fall, 0.1), 10.0) if math.isfinite(fall) else 1.0

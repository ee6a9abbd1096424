"""Search for the smallest noise that meets a target, ending on the safe side."""

import math
from collections.abc import Callable

from app.domain.errors import CalibrationError

_HALVINGS = 200


def smallest_noise(
    meets: Callable[[float], bool], *, scale: float, relative_width: float = 1e-10
) -> float:
    """Return the smallest noise for which ``meets`` holds, rounded up to one that does.

    ``meets`` must go from false to true once as the noise grows. ``scale`` is a first guess,
    ``relative_width`` how far above the smallest the answer may lie.

    Raises:
        CalibrationError: nothing between 1e-9 and 1e9 times the scale is the smallest.
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

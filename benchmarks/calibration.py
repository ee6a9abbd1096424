"""The noise and the steps that a bound asks for, searched for with its accountant."""

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from app.accounting.guarantees import Guarantee
from app.accounting.published.koloskova import theorem_4_2
from app.accounting.search import meeting, smallest_noise
from app.domain.errors import CalibrationError

_MOST_STEPS = 1 << 24
_NOISES = {"noise_std", "noise_scale", "noise_multiplier"}


def calibrate(
    account: Callable[..., Guarantee],
    *,
    epsilon: float,
    delta: float,
    relative_width: float = 1e-12,
    **setting: Any,
) -> float:
    """Return the smallest noise that reaches (epsilon, delta) under a bound, rounded up."""
    asked = inspect.signature(account).parameters
    (noise,) = _NOISES & set(asked)
    target = {"epsilon": epsilon, "delta": delta}
    given = setting | {name: value for name, value in target.items() if name in asked}

    def at(value: float) -> Guarantee:
        return account(**given, **{noise: value})

    meets = meeting(at, **target, refused=frozenset({noise, "epsilon"}))
    scale = 1.0
    while scale > 1e-30 and meets(scale * 1e-6):
        scale *= 1e-6
    found = smallest_noise(meets, scale=scale, relative_width=relative_width)
    at(found * (1 - 1e-9))  # where a little less is refused, the range decides, not the target
    return found


def steps_needed(*, delta: float, **setting: Any) -> int:
    """Return the number of steps of Koloskova et al. 2025, Theorem 4.2 (its equation 10)."""
    one, two = (math.log(theorem_4_2(**setting, steps=steps).at_delta) for steps in (1, 2))
    factor = two - one
    if factor >= -1e-9:
        raise CalibrationError("model clipping does not reach delta with this little noise")
    return max(1, math.ceil((math.log(delta) - one) / factor * (1 + 1e-12)) + 1)


def noise_std_of(*, learning_rate: float, noise_scale: float) -> float:
    """Return sqrt(2 eta) sigma: the noise of one step in the papers' convention."""
    return math.sqrt(2 * learning_rate) * noise_scale


def fewest(enough: Callable[[int], bool]) -> int:
    """Return the smallest count that is enough, where more are always enough too."""
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST_STEPS:
            raise RuntimeError("no reasonable number of steps is enough")
    return bisect_left(range(high), 1, lo=high // 2, key=enough)

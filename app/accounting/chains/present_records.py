"""Privacy of records that are still present: the maps differ at every step.

No step is post-processing, and the running minimum of ``noisy_chain`` is not allowed. Guarantee:
mu-GDP for the last iterate, by ``minorant``. Source: docs/guarantees.md, section 2.4.
"""

import math
from collections.abc import Sequence

from app.accounting.chains.minorant import Minorant
from app.domain.checks import require_non_negative
from app.domain.errors import ParameterError


def minorant_mu(
    *,
    start_distance: float,
    contractions: Sequence[float],
    shifts: Sequence[float],
    noise_stds: Sequence[float],
) -> float:
    """Return mu for any schedule, rounded up; one entry a step, about a microsecond each.

    A step without noise is allowed: its shift waits for the next noisy one. The last steps may not
    add a shift without noise to hide it.
    """
    waiting = require_non_negative("start_distance", start_distance)
    steps = len(noise_stds)
    if not steps or len(contractions) != steps or len(shifts) != steps:
        raise ParameterError("noise_stds", "as many as contractions and shifts, and at least one")
    schedule = zip(
        _checked("contractions", contractions, lowest=0.0, highest=1.0),
        _checked("shifts", shifts, lowest=0.0, highest=1e150),
        _checked("noise_stds", noise_stds, lowest=1e-140, highest=1e140),
        strict=True,
    )
    minorant = Minorant(start_distance=waiting)
    for contraction, shift, noise_std in schedule:
        minorant.step(contraction=contraction, shift=shift, noise_std=noise_std)
    if minorant.waiting > 0.0:
        raise ParameterError("noise_stds", "above 0 in the last step that has a shift")
    mu = minorant.mu()
    if not math.isfinite(mu):
        raise ParameterError("shifts", "small enough for mu to stay finite")
    return mu


def _checked(name: str, values: Sequence[float], *, lowest: float, highest: float) -> list[float]:
    """Return the values as floats; 0 is always allowed, what lies between must be normal."""
    numbers = [float(number) for number in values]
    if not all(number == 0 or lowest <= number <= highest for number in numbers):
        raise ParameterError(name, f"a list of numbers, 0 or from {lowest:g} to {highest:g}")
    return numbers

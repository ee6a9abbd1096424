"""What a run has reported on its way: kept with the run, thinned out as it grows.

Only what may be known of weights that are not yet certified: steps, ε, and the loss where the
weights may be published.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.states import Phase

MOST_POINTS = 256
_FIELDS = ("phase", "step", "epsilon", "loss")


def with_report(
    points: Sequence[Mapping[str, Any]], progress: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the points with what was reported last, at most ``MOST_POINTS`` of them.

    A report without a step, or with neither ε nor loss, adds none. When there are too many, every
    second one is dropped, never the last.
    """
    point = {name: finite(progress.get(name)) for name in _FIELDS}
    if point["step"] is None or (point["epsilon"] is None and point["loss"] is None):
        return list(points)
    if point["phase"] == Phase.UNLEARNING:
        point["loss"] = None
    else:  # its ε stays, and says nothing of these steps
        if point["loss"] is None:
            return list(points)
        point["epsilon"] = None
    kept = [*points, point]
    if len(kept) > MOST_POINTS:
        kept = kept[::-2][::-1]
    return kept


def finite(value: object) -> object:
    """Return a value; None for infinity and NaN, which JSON cannot hold and never equals itself."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

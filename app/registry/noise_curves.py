"""What noise costs a head in its headline metric, as its evaluation has measured it.

A version's evaluation has the metric of its released weights with more noise than they have:
post-processing, which tells nothing that the weights do not. It cannot say what less noise would
give, so no figure is made of that.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def score_at(evaluation: Mapping[str, Any], *, noise_std: float) -> float | None:
    """Return the headline metric with noise of this standard deviation in all.

    Between two measured points it goes straight over the logarithm of the noise. None below the
    noise of the release, above the most that was measured, and where nothing was.
    """
    curve = evaluation.get("noise_curve")
    if not curve:
        return None
    points = [(point["noise_std"], point["score"]) for point in curve]
    for (less, above), (more, below) in pairwise(points):
        if less * (1 - 1e-9) <= noise_std <= more * (1 + 1e-9):
            share = math.log(noise_std / less) / math.log(more / less)
            return float(above + min(1.0, max(0.0, share)) * (below - above))
    return None

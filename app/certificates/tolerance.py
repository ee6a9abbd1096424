"""How far a stated bound may be off from the one that is computed again: by rounding alone."""

import math
from typing import Final

_RELATIVE_TOLERANCE: Final = 1e-12


def at_most(actual: float, stated: float) -> bool:
    """Say whether ``actual`` is no larger than stated; what is not finite never is."""
    if not (math.isfinite(actual) and math.isfinite(stated)):
        return False
    return actual <= stated * (1 + _RELATIVE_TOLERANCE)

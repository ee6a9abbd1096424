"""Parameters that the operator fixed: are they known, and whole where they count steps?"""

import inspect
from collections.abc import Callable, Mapping

from app.domain.errors import PlanError


def refuse_unknown(fixed: Mapping[str, float], account: Callable[..., object]) -> None:
    """Raise ``PlanError`` for a parameter that the mechanism does not have."""
    known = inspect.signature(account).parameters
    for name in fixed:
        if name not in known:
            raise PlanError(f"unknown parameter {name!r}; expected {', '.join(known)}")


def whole_steps(fixed: Mapping[str, float], default: int) -> int:
    """Return the fixed number of steps, or ``default``; ``PlanError`` if it is not whole."""
    steps = fixed.get("steps", default)
    if steps != int(steps) or steps < 0:
        raise PlanError("steps must be a whole number")
    return int(steps)

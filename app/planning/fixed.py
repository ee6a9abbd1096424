"""Parameters that the operator fixed: are they known, and whole where they count steps?"""

import inspect
from collections.abc import Callable, Mapping, Sequence

from app.domain.errors import PlanError


def refuse_unknown(fixed: Mapping[str, float], account: Callable[..., object]) -> None:
    """Raise ``PlanError`` for a parameter that the mechanism does not have."""
    refuse_unlisted(fixed, tuple(inspect.signature(account).parameters))


def refuse_unlisted(fixed: Mapping[str, float], known: Sequence[str]) -> None:
    """Raise ``PlanError`` for a parameter that is not among ``known``."""
    for name in fixed:
        if name not in known:
            raise PlanError(f"unknown parameter {name!r}; expected {', '.join(known)}")


def whole_steps(fixed: Mapping[str, float], default: int, *, name: str = "steps") -> int:
    """Return a fixed whole number, or ``default``; ``PlanError`` if it is not whole."""
    number = fixed.get(name, default)
    if number != int(number) or number < 0:
        raise PlanError(f"{name} must be a whole number")
    return int(number)

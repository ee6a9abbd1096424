"""Compares a certificate's values with recomputed ones: equal up to rounding."""

import math
from collections.abc import Mapping
from typing import Any, Final

RELATIVE: Final = 1e-9


def difference(stated: Any, computed: Any, where: str) -> str | None:  # noqa: ANN401 - JSON
    """Return the path of the first difference between two JSON values; None if there is none.

    Floats may differ by a relative 1e-9 in either direction: a claim weaker than what follows from
    the parameters is as wrong as a stronger one. All else must be equal, including types, except
    that an integer may replace a float.
    """
    if isinstance(computed, Mapping):
        if not isinstance(stated, Mapping) or set(stated) != set(computed):
            return where
        pairs = [(f"{where}.{name}", stated[name], computed[name]) for name in computed]
    elif isinstance(computed, list | tuple):
        if not isinstance(stated, list) or len(stated) != len(computed):
            return where
        both = zip(stated, computed, strict=True)
        pairs = [(f"{where}.{index}", *each) for index, each in enumerate(both)]
    else:
        return None if _same(stated, computed) else where
    found = (difference(inner, computed_inner, place) for place, inner, computed_inner in pairs)
    return next((place for place in found if place is not None), None)


def _same(stated: Any, computed: Any) -> bool:  # noqa: ANN401
    if type(computed) is float:
        return type(stated) in (int, float) and _close(stated, computed)
    if isinstance(computed, str):
        return isinstance(stated, str) and stated == computed
    return type(stated) is type(computed) and bool(stated == computed)


def _close(stated: float, computed: float) -> bool:
    try:
        return math.isfinite(computed) and math.isclose(stated, computed, rel_tol=RELATIVE)
    except OverflowError:
        return False

"""Unambiguous JSON: no duplicate names, no NaN, no number beyond float64."""

import json
import math
from typing import Any


class RepeatedFieldError(ValueError):
    """An object names a field twice."""


def loads(text: str | bytes) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Parse as ``json.loads`` does, or raise ``ValueError``; ``RecursionError`` if too deep."""
    return json.loads(
        text, object_pairs_hook=distinct_fields, parse_constant=_finite, parse_float=_finite
    )


def distinct_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; ``RepeatedFieldError`` if one of two fields would be ignored in silence."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise RepeatedFieldError("an object names a field twice")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number

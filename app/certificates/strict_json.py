"""Unambiguous JSON: no duplicate names, no NaN, no number beyond float64."""

import json
import math
from typing import Any, NoReturn


def loads(text: str | bytes) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Parse as ``json.loads`` does, or raise ``ValueError``; ``RecursionError`` if too deep."""
    return json.loads(
        text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object names a field twice")
    return fields


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("a number is not finite")

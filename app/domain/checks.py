"""Checks of numbers, objects and URLs: of formulas' parameters, of definitions, of settings."""

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from app.domain.errors import InvalidInputError, ParameterError


def is_number(
    number: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
) -> bool:
    """Return whether this is a finite number within the bounds."""
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and abs(number) <= sys.float_info.max  # false for NaN; a whole number may have any length
        and number > above
        and least <= number < below
    )


def known_fields(document: object, where: str, known: Collection[str]) -> dict[str, Any]:
    """Return an object's fields.

    Raises:
        InvalidInputError: no object, or one with other fields; messages begin with ``where``.
    """
    if not isinstance(document, Mapping):
        raise InvalidInputError(f"{where}: must be an object")
    unknown = sorted(str(name) for name in document.keys() - set(known))
    if unknown:
        expected = f"known are {', '.join(sorted(known))}"
        raise InvalidInputError(f"{where}: unknown field {unknown[0]!r}; {expected}")
    return dict(document)


def require_finite(name: str, number: float) -> float:
    """Return ``number`` as a float, or raise ``ParameterError`` if it is NaN or infinite."""
    if not is_number(number):
        raise ParameterError(name, "a finite number")
    return float(number)


def require_positive(name: str, number: float) -> float:
    """Return ``number`` as a float, or raise ``ParameterError`` unless it is above 0."""
    if require_finite(name, number) <= 0:
        raise ParameterError(name, "above 0")
    return float(number)


def require_non_negative(name: str, number: float) -> float:
    """Return ``number`` as a float, or raise ``ParameterError`` if it is below 0."""
    if require_finite(name, number) < 0:
        raise ParameterError(name, "0 or above")
    return float(number)


def require_delta(delta: float) -> float:
    """Return ``delta``, or raise ``ParameterError`` unless 0 < delta < 1."""
    if not 0 < require_finite("delta", delta) < 1:
        raise ParameterError("delta", "above 0 and below 1")
    return float(delta)


def require_fraction(name: str, number: float) -> float:
    """Return ``number`` as a float, or raise ``ParameterError`` unless 0 < number <= 1."""
    if not 0 < require_finite(name, number) <= 1:
        raise ParameterError(name, "above 0 and at most 1")
    return float(number)


def require_noise(name: str, noise_std: float) -> float:
    """Return ``noise_std``, or raise ``ParameterError`` unless its square is a normal float64."""
    if not 1e-140 <= require_finite(name, noise_std) <= 1e140:
        raise ParameterError(name, "between 1e-140 and 1e140")
    return float(noise_std)


def require_steps(name: str, steps: int) -> int:
    """Return ``steps``, or raise ``ParameterError`` unless it is a whole number of at least 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ParameterError(name, "a whole number of at least 1")
    return steps


def require_count(name: str, count: int) -> int:
    """Return ``count``, or raise ``ParameterError`` unless it is a whole number of at least 0."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ParameterError(name, "a whole number of at least 0")
    return count


_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}


def is_safe_url(url: str) -> bool:
    """Return whether no other host can answer: the URL uses TLS or points to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in _THIS_MACHINE)

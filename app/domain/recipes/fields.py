"""What a field of a recipe may be."""

import math
import sys

from app.domain.errors import InvalidInputError


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


def require(name: str, condition: object, allowed: str) -> None:
    """Raise ``InvalidInputError`` unless the condition holds."""
    if not condition:
        raise InvalidInputError(f"recipe: {name} must be {allowed}")


def require_choice(name: str, choice: object, choices: tuple[str, ...]) -> None:
    """Raise ``InvalidInputError`` unless this is one of the choices."""
    require(name, isinstance(choice, str) and choice in choices, f"one of {', '.join(choices)}")


def require_whole(name: str, number: object, most: int) -> None:
    """Raise ``InvalidInputError`` unless this is a whole number from 1 to ``most``."""
    fits = type(number) is int and 1 <= number <= most
    require(name, fits, f"a whole number from 1 to {most}")

"""What a field of a recipe may be."""

from app.domain.errors import InvalidInputError


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

"""A mechanism's parameter: one number for all steps, or a schedule of one number for each step."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.checks import require_finite
from app.domain.errors import ParameterError

Schedule = float | Sequence[float]
"""One number, or one for each step."""

# Four schedules of this length, with all digits, fit into a certificate's bundle.
MAX_SCHEDULE_STEPS = 20_000


def require_schedules(parameters: Mapping[str, Any]) -> dict[str, Schedule]:
    """Return parameters with lists as tuples; ``ParameterError`` unless all numbers are finite."""
    read: dict[str, Schedule] = {}
    for name, value in parameters.items():
        many = isinstance(value, list | tuple)
        if not isinstance(value, int | float) and not (
            many and 1 <= len(value) <= MAX_SCHEDULE_STEPS
        ):
            raise ParameterError(name, f"a number or a list of 1 to {MAX_SCHEDULE_STEPS} numbers")
        for number in value if many else (value,):
            require_finite(name, number)
        read[name] = tuple(value) if many else value
    return read


def to_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as plain JSON values: schedules as lists, the rest unchanged."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in parameters.items()
    }


def from_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Invert ``to_json``."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in parameters.items()
    }


def until(parameters: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Cut every schedule to its first ``steps`` steps."""
    return {
        name: value[:steps] if isinstance(value, tuple | list) else value
        for name, value in parameters.items()
    }


def varies(schedule: Schedule) -> bool:
    """Return whether the value is a schedule."""
    return not isinstance(schedule, int | float)


def at(schedule: Schedule, step: int) -> float:
    """Return the value at one step, counted from 0."""
    return schedule if isinstance(schedule, int | float) else schedule[step]

"""A mechanism's parameter: one number for all steps, or a schedule of one number for each step."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.checks import require_finite
from app.domain.errors import ParameterError

Schedule = float | Sequence[float]
"""One number, or one for each step."""

# Four schedules of this length, each number with all its digits, fit into a certificate's bundle.
MAX_SCHEDULE_STEPS = 20_000


def require_schedules(parameters: Mapping[str, Any]) -> dict[str, Schedule]:
    """Return parameters as they come out of JSON, every list of numbers as a tuple.

    Raises:
        ParameterError: a value is neither a finite number nor a list of 1 to
            ``MAX_SCHEDULE_STEPS`` finite numbers.
    """
    return {name: _require_schedule(name, value) for name, value in parameters.items()}


def to_json(parameters: Mapping[str, Schedule]) -> dict[str, float | list[float]]:
    """Return parameters as plain JSON values."""
    return {
        name: schedule if isinstance(schedule, int | float) else list(schedule)
        for name, schedule in parameters.items()
    }


def varies(schedule: Schedule) -> bool:
    """Return whether there is a number for each step."""
    return not isinstance(schedule, int | float)


def at(schedule: Schedule, step: int) -> float:
    """Return the number of one step, counted from 0."""
    return schedule if isinstance(schedule, int | float) else schedule[step]


def until(schedule: Schedule, steps: int) -> Schedule:
    """Return the schedule of the first ``steps`` steps."""
    return schedule if isinstance(schedule, int | float) else schedule[:steps]


def _require_schedule(name: str, value: object) -> Schedule:
    if isinstance(value, int | float):
        require_finite(name, value)
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_SCHEDULE_STEPS:
        raise ParameterError(name, f"a number or a list of 1 to {MAX_SCHEDULE_STEPS} numbers")
    for number in value:
        require_finite(name, number)
    return tuple(value)

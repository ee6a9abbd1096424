"""From a plan's numbers to a mechanism's fields."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from app.domain.errors import ParameterError
from app.domain.schedules import Schedule

Rule = TypeVar("Rule")


def fill(rule: type[Rule], numbers: Mapping[str, Schedule]) -> Rule:
    """Return a rule with every field given by ``numbers``, and no number left over.

    Raises:
        ParameterError: a number is missing or unknown.
    """
    known = [field.name for field in fields(rule)]  # type: ignore[arg-type]
    for name in numbers:
        if name not in known:
            raise ParameterError(name, f"one of {', '.join(known)}")
    for name in known:
        if name not in numbers:
            raise ParameterError(name, "given")
    values: dict[str, Any] = dict(numbers)
    steps = values.get("steps")
    if isinstance(steps, float) and steps.is_integer():
        values["steps"] = int(steps)
    return rule(**values)

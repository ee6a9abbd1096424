"""From a plan's numbers to a mechanism's fields."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import torch

from app.domain.errors import ParameterError, PlanError
from app.domain.schedules import Schedule

Rule = TypeVar("Rule")


def fill(rule: type[Rule], numbers: Mapping[str, Schedule]) -> Rule:
    """Return a rule with every field given by ``numbers``, and no number left over.

    Raises:
        ParameterError: a number is missing or unknown.
    """
    known = {field.name: field.default for field in fields(rule)}  # type: ignore[arg-type]
    for name in numbers:
        if name not in known:
            raise ParameterError(name, f"one of {', '.join(known)}")
    for name, default in known.items():
        if name not in numbers and default is MISSING:
            raise ParameterError(name, "given")
    values: dict[str, Any] = dict(numbers)
    steps = values.get("steps")
    if isinstance(steps, float) and steps.is_integer():
        values["steps"] = int(steps)
    return rule(**values)


def require_dimension(dimension: int | None, position: torch.Tensor) -> None:
    """Raise ``PlanError`` if a plan was made for another number of weights; None fits any."""
    if dimension not in (None, position.numel()):
        raise PlanError(f"dimension must be {position.numel()}, not {dimension}")

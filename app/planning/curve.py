"""How a plan's guarantee grows with its steps: the curve that a run is expected to follow."""

import math

from app.domain.errors import CalibrationError, ParameterError
from app.domain.plan import Plan
from app.planning.mechanisms.catalogue import mechanism_named, mechanism_of

POINTS = 40


def epsilon_by_step(plan: Plan, *, points: int = POINTS) -> list[tuple[int, float]]:
    """Return (step, epsilon) from the first finite value on; nothing if it is not ``stepwise``."""
    steps = plan.parameters.get("steps")
    if not mechanism_named(plan.mechanism).stepwise or not isinstance(steps, int):
        return []
    curve = [(step, _epsilon_after(plan, step)) for step in _spread(steps, points)]
    return [(step, epsilon) for step, epsilon in curve if math.isfinite(epsilon)]


def _epsilon_after(plan: Plan, steps: int) -> float:
    try:
        return mechanism_of(plan).taken(plan, steps).account().epsilon(delta=plan.delta)
    except (CalibrationError, ParameterError):
        return math.inf


def _spread(steps: int, points: int) -> list[int]:
    """Return at most ``points`` step numbers from 1 to ``steps``, closest where ε falls fastest."""
    return sorted({max(1, round(steps * (index / points) ** 2)) for index in range(1, points + 1)})

"""What a policy fixes: known parameters, numbers, whole steps, enough noise, within the budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from app.accounting.guarantees import GaussianGuarantee
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.domain.schedules import Schedule
from app.planning.mechanisms.mechanism import Mechanism
from app.planning.shape import ModelShape

_MEASURED = ("dimension", "records")  # of the model: no policy fixes them


def refuse_unknown(fixed: Mapping[str, Schedule], mechanism: type[Mechanism]) -> None:
    """Raise ``PlanError`` for a parameter that the mechanism does not have."""
    known = [field.name for field in fields(mechanism) if field.name not in _MEASURED]
    _refuse_unlisted(fixed, known)


def numbers(fixed: Mapping[str, Schedule]) -> dict[str, float]:
    """Return parameters that must not vary by step; ``PlanError`` for a list."""
    single: dict[str, float] = {}
    for name, value in fixed.items():
        if not isinstance(value, int | float):
            raise PlanError(f"{name} must be one number here, not one for each step")
        single[name] = value
    return single


def only(fixed: Mapping[str, Schedule], *known: str) -> dict[str, float]:
    """Return parameters that are single numbers; ``PlanError`` for one that is not ``known``."""
    single = numbers(fixed)
    _refuse_unlisted(single, known)
    return single


def whole_steps(fixed: Mapping[str, float], default: int, *, name: str = "steps") -> int:
    """Return a fixed whole number, or ``default``; ``PlanError`` if it is not whole."""
    number = fixed.get(name, default)
    if number != int(number) or number < 0:
        raise PlanError(f"{name} must be a whole number, and not negative")
    return int(number)


def refuse_missed(guarantee: GaussianGuarantee, epsilon: float, delta: float) -> None:
    """Raise ``PlanError`` unless the fixed noise_std meets the target."""
    if not guarantee.meets(epsilon=epsilon, delta=delta):
        raise PlanError(
            f"noise_std gives epsilon {guarantee.epsilon(delta=delta):.4g}, not {epsilon:.4g}: "
            "leave it out and it will be computed"
        )


def refuse_above_budget(policy: Policy, shape: ModelShape, gradients: float) -> None:
    """Raise ``PlanError`` where a run would take more gradients than the budget allows."""
    budget = policy.budget_epochs
    if budget is not None and gradients > budget * shape.retained:
        raise PlanError(
            f"the plan takes {gradients:.0f} gradients but budget_epochs allows "
            f"{math.floor(budget * shape.retained)}"
        )


def refuse_unless_named(
    policy: Policy,
    mechanism: type[Mechanism],
    why: str = "needs its noise from the first step of training",
) -> None:
    """Raise ``PlanError`` under ``auto``."""
    if policy.mechanism != mechanism.name:
        raise PlanError(f"{why}: name it in the policy")


def _refuse_unlisted(fixed: Mapping[str, Schedule], known: Sequence[str]) -> None:
    for name in fixed:
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "none is taken here"
            raise PlanError(f"unknown parameter {name!r}; {expected}")

"""All mechanisms by name. To add one, see docs/development.md."""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from app.accounting.guarantees import Guarantee
from app.domain.errors import CalibrationError, NotFoundError, ParameterError
from app.domain.plan import Plan
from app.planning.mechanisms.mechanism import Mechanism

CURVE_POINTS = 40
# Each is a module beside this one, whose class has the same name in CamelCase.
_NAMES = (
    "gradient_clipping",
    "model_clipping",
    "output_perturbation",
    "tracked_release",
    "delete_to_descent",
    "langevin_unlearning",
    "projected_noisy_sgd",
    "noisy_gd_convex",
    "noisy_gd_nonconvex",
    "dp_sgd",
    "retraining",
    "sharded_retraining",
    "exact_training",
    "sufficient_statistics",
    "boosting",
)


MECHANISMS: Mapping[str, type[Mechanism]] = {
    name: getattr(import_module(f"app.planning.mechanisms.{name}"), name.title().replace("_", ""))
    for name in _NAMES
}


def mechanism_named(name: str) -> type[Mechanism]:
    """Return a mechanism, or raise ``NotFoundError``."""
    if name not in MECHANISMS:
        raise NotFoundError("mechanism", name)
    return MECHANISMS[name]


def mechanism_of(plan: Plan) -> Mechanism:
    """Return a plan's mechanism with its parameters; ``NotFoundError`` if this version has none."""
    return mechanism_named(plan.mechanism).of(plan.parameters)


def account(name: str, parameters: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of ``parameters`` under a mechanism, or raise ``NotFoundError``."""
    return mechanism_named(name).of(parameters).account()


def epsilon_by_step(plan: Plan, *, points: int = CURVE_POINTS) -> list[tuple[int, float]]:
    """Return the curve that a run is expected to follow: (step, epsilon) from the first finite on.

    Nothing if the plan's mechanism is not ``stepwise``.
    """
    steps = plan.parameters.get("steps")
    if not mechanism_named(plan.mechanism).stepwise or not isinstance(steps, int):
        return []
    # At most so many steps, closest where ε falls fastest.
    spread = {max(1, round(steps * (index / points) ** 2)) for index in range(1, points + 1)}
    curve = []
    for step in sorted(spread):
        try:
            guarantee = mechanism_of(plan).taken(plan, step).account()
            curve.append((step, guarantee.epsilon(delta=plan.delta)))
        except (CalibrationError, ParameterError):
            continue
    return [(step, epsilon) for step, epsilon in curve if math.isfinite(epsilon)]

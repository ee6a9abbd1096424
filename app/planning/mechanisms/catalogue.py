"""All mechanisms by name. To add one, see docs/development.md."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from app.accounting.guarantees import Guarantee
from app.domain.errors import NotFoundError
from app.domain.plan import Plan
from app.planning.mechanisms.mechanism import Mechanism

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
)


def _load(name: str) -> type[Mechanism]:
    module = import_module(f"app.planning.mechanisms.{name}")
    mechanism: type[Mechanism] = getattr(module, name.title().replace("_", ""))
    return mechanism


MECHANISMS: Mapping[str, type[Mechanism]] = {name: _load(name) for name in _NAMES}


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

"""A plan's update rule, found by the name that ``app.planning.mechanisms`` has for it."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

from app.domain.errors import NotFoundError, PlanError
from app.domain.plan import Plan
from app.domain.tasks.spec import TaskSpec
from app.planning.mechanisms.catalogue import MECHANISMS, mechanism_named, mechanism_of
from app.planning.mechanisms.mechanism import Deterministic, Mechanism
from workers.data.loading import RunData
from workers.training.networks.network import Network
from workers.training.noisy_phase import Rule

Solver = Callable[[Network, RunData, TaskSpec], None]
"""Sets the weights of a fresh network from the retained records, or their sums, alone."""


def rule_of(plan: Plan) -> Rule:
    """Return the plan's update rule with its parameters.

    Each module here with a rule offers ``from_plan``, which returns it for a plan.

    Raises:
        PlanError: this worker knows no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    try:
        mechanism = mechanism_named(plan.mechanism)
    except NotFoundError as error:
        raise PlanError(f"this worker knows no mechanism {plan.mechanism!r}: update it") from error
    if mechanism.trains_anew:
        raise PlanError(f"{plan.mechanism} has no rule: it trains a new network")
    rule: Rule = _module_of(mechanism).from_plan(plan)
    return rule


def solver_of(plan: Plan) -> Solver:
    """Return what computes a deterministic plan's head: ``solve`` of the mechanism's module.

    Raises:
        NotFoundError: this worker knows no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    mechanism = mechanism_of(plan)
    return partial(_module_of(type(mechanism)).solve, mechanism)


def load_rules() -> None:
    """Import every rule and solver, so that a run need not."""
    for mechanism in MECHANISMS.values():
        if issubclass(mechanism, Deterministic) or not mechanism.trains_anew:
            _module_of(mechanism)


def _module_of(mechanism: type[Mechanism]) -> ModuleType:
    return import_module(f"workers.mechanisms.{mechanism.rule or mechanism.name}")

"""All accountants by name, for callers that hold names and numbers (CLI, plans, certificates)."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from app.accounting import (
    delete_to_descent,
    dp_sgd,
    gradient_clipping,
    langevin_unlearning,
    model_clipping,
    noisy_gd_convex,
    noisy_gd_nonconvex,
    output_perturbation,
    projected_noisy_sgd,
    retraining,
    tracked_release,
)
from app.accounting.guarantees import Guarantee
from app.accounting.published import (
    chien_corollary_3_7,
    chien_corollary_3_8,
    chien_corollary_3_10,
    chien_corollary_j_1,
    chien_theorem_3_2,
    chien_theorem_3_11,
    chien_theorem_p_2,
    chourasia_theorem_5_1,
    dp_sgd_group_privacy,
    koloskova_output_perturbation,
    koloskova_theorem_4_1,
    koloskova_theorem_4_2,
    koloskova_theorem_a_9,
    neel_theorem_9,
    neel_theorem_28,
)
from app.accounting.quantities import QUANTITIES
from app.domain.errors import NotFoundError, ParameterError

_MECHANISMS: tuple[ModuleType, ...] = (
    gradient_clipping,
    output_perturbation,
    model_clipping,
    projected_noisy_sgd,
    tracked_release,
    delete_to_descent,
    langevin_unlearning,
    noisy_gd_convex,
    noisy_gd_nonconvex,
    dp_sgd,
    retraining,
)
_PUBLISHED: tuple[ModuleType, ...] = (
    koloskova_theorem_4_1,
    koloskova_theorem_a_9,
    koloskova_theorem_4_2,
    koloskova_output_perturbation,
    chien_theorem_3_2,
    chien_corollary_3_7,
    chien_corollary_3_8,
    chien_corollary_3_10,
    chien_theorem_3_11,
    chien_corollary_j_1,
    neel_theorem_9,
    neel_theorem_28,
    chien_theorem_p_2,
    chourasia_theorem_5_1,
    dp_sgd_group_privacy,
)

# What the service runs and certifies.
MECHANISMS: Mapping[str, ModuleType] = {module.NAME: module for module in _MECHANISMS}
# The papers' own bounds, to compare with.
PUBLISHED: Mapping[str, ModuleType] = {module.NAME: module for module in _PUBLISHED}
ACCOUNTANTS: Mapping[str, ModuleType] = {**MECHANISMS, **PUBLISHED}


def accountant(name: str) -> ModuleType:
    """Return the accountant of a mechanism, or raise ``NotFoundError``."""
    if name not in ACCOUNTANTS:
        raise NotFoundError("mechanism", name)
    return ACCOUNTANTS[name]


def account(name: str, parameters: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of ``parameters`` under the mechanism called ``name``.

    Raises:
        NotFoundError: the mechanism does not exist.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    return cast("Guarantee", _call(accountant(name).account, parameters))


def calibrate(name: str, parameters: Mapping[str, Any]) -> float:
    """Return what the mechanism's ``calibrate`` solves for (a noise standard deviation).

    Raises:
        NotFoundError: the mechanism does not exist.
        ParameterError: a parameter is missing, unknown or out of its range.
        CalibrationError: the search did not converge.
    """
    return cast("float", _call(accountant(name).calibrate, parameters))


def compute(name: str, parameters: Mapping[str, Any]) -> float:
    """Return one of ``quantities.QUANTITIES``.

    Raises:
        NotFoundError: the quantity does not exist.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    if name not in QUANTITIES:
        raise NotFoundError("mechanism or quantity", name)
    return cast("float", _call(QUANTITIES[name], parameters))


def _call(function: Callable[..., object], parameters: Mapping[str, Any]) -> object:
    expected = inspect.signature(function).parameters
    for name in parameters:
        if name not in expected:
            raise ParameterError(name, f"one of {', '.join(expected)}")
    for name, parameter in expected.items():
        if name not in parameters and parameter.default is inspect.Parameter.empty:
            raise ParameterError(name, "given")
    return function(**parameters)

"""All accountants by name, for callers that hold names and numbers (CLI, plans, certificates)."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

from app.accounting import gradient_clipping
from app.accounting.guarantees import Guarantee
from app.domain.errors import NotFoundError, ParameterError

ACCOUNTANTS: Mapping[str, ModuleType] = {gradient_clipping.NAME: gradient_clipping}


def accountant(name: str) -> ModuleType:
    """Return the accountant of a mechanism, or raise ``NotFoundError``."""
    if name not in ACCOUNTANTS:
        raise NotFoundError("mechanism", name)
    return ACCOUNTANTS[name]


def account(name: str, parameters: Mapping[str, Any]) -> Guarantee:
    """Return the guarantee of ``parameters`` under the mechanism called ``name``.

    Raises:
        NotFoundError: there is no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
    """
    guarantee = _call(accountant(name).account, parameters)
    return cast("Guarantee", guarantee)


def calibrate(name: str, parameters: Mapping[str, Any]) -> float:
    """Return what the mechanism's ``calibrate`` solves for (a noise standard deviation).

    Raises:
        NotFoundError: there is no such mechanism.
        ParameterError: a parameter is missing, unknown or out of its range.
        CalibrationError: the search did not converge.
    """
    return cast("float", _call(accountant(name).calibrate, parameters))


def _call(function: Callable[..., object], parameters: Mapping[str, Any]) -> object:
    expected = inspect.signature(function).parameters
    for name in parameters:
        if name not in expected:
            raise ParameterError(name, f"one of {', '.join(expected)}")
    for name, parameter in expected.items():
        if name not in parameters and parameter.default is inspect.Parameter.empty:
            raise ParameterError(name, "given")
    return function(**parameters)

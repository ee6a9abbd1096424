"""An operator's own package, which is not installed."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

PACKAGE = "operators_networks"


def operators_package(
    monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., Any]
) -> types.ModuleType:
    """Make a package that can be imported, with these functions; the module may get others."""
    module = types.ModuleType(PACKAGE)
    for function in functions:
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, PACKAGE, module)
    return module

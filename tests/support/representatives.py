"""Families of tests, of which some are tried every time and all every night."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_nightly(names: Iterable[str], *always: str) -> list[Any]:
    """Return names as parameters; all but those that are tried always are for the night."""
    every = list(names)
    assert set(always) <= set(every)
    return [
        name if name in always else pytest.param(name, marks=pytest.mark.nightly) for name in every
    ]

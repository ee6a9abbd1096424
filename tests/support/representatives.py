"""Families of tests, of which some are tried every time and all every night."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_nightly(every: Iterable[Any], *always: Any) -> list[Any]:
    """Return parameters of tests; all but those that are tried always are for the night."""
    every = list(every)
    assert all(each in every for each in always)
    return [
        each if each in always else pytest.param(each, marks=pytest.mark.nightly) for each in every
    ]

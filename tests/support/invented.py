"""Properties of invented examples: a few are tried by ``make test``, many by ``make test-slow``."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def invented(
    few: int, many: int, **strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Make a test of a property whose examples take long: ``many`` are tried every night."""

    def decorate(holds: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.nightly)])
        def test(examples: int) -> None:
            @given(**strategies)
            @settings(max_examples=examples)
            @wraps(holds)
            def tried(**drawn: Any) -> None:
                holds(**drawn)

            tried()

        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return test

    return decorate

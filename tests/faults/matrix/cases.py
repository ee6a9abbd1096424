"""What the cases of the matrix are made of."""

import pytest


def slow(*values):
    """A case for ``make test-slow`` alone."""
    return pytest.param(*values, marks=pytest.mark.slow)

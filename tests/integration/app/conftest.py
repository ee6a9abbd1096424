"""Fixtures of the tests that need no worker."""

from collections.abc import Iterator

import pytest

from tests.support.logbook import faults
from tests.support.workshop import Workshop


@pytest.fixture
def workshop(workshop: Workshop) -> Iterator[Workshop]:
    """The log tells all that was done."""
    yield workshop
    if not workshop.forged:
        assert faults(workshop.services) == []

"""Fixtures of the tests that need no worker."""

from collections.abc import Iterator

import pytest

from app.services import Services
from tests.support.logbook import faults
from tests.support.workshop import Workshop


@pytest.fixture
def workshop(services: Services) -> Iterator[Workshop]:
    """A dataset of forty records, and every step of a run by hand; the log tells all of it."""
    workshop = Workshop(services)
    yield workshop
    if not workshop.forged:
        assert faults(services) == []

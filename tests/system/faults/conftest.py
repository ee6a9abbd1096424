"""What the tests of every folder here use: each has a ``service`` of its own."""

import pytest


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client

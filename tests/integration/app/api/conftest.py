"""Callers of the API."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.services import Services

CallerOf = Callable[..., TestClient]


@pytest.fixture
def caller_of(services: Services) -> CallerOf:
    """Return a client whose key has just these scopes; without any, a client without a key."""
    app = create_app(services)

    def client(*scopes: Scope) -> TestClient:
        if not scopes:
            return TestClient(app)
        with services.database.transaction() as session:
            _, secret = api_keys.create_key(session, name="caller", scopes=scopes)
        return TestClient(app, headers={"Authorization": f"Bearer {secret}"})

    return client

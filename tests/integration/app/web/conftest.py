"""Logged-in visitors, and a browser where there is one."""

import re
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from app.access import api_keys
from app.cli.application import create_app
from app.domain.states import Scope
from app.runtime.locations import redis_connection
from app.services import Services

VisitorOf = Callable[..., TestClient]


@pytest.fixture(autouse=True)
def _no_memory_of_others(services: Services) -> None:
    """Have neither sessions nor failed logins from other tests."""
    redis_connection(services.settings).flushdb()


def token_in(page: str) -> str:
    """Return what the forms of a page carry."""
    found = re.search(r'name="token" value="(\w+)"', page)
    assert found is not None
    return found[1]


def log_in(client: TestClient, key: str) -> None:
    token = token_in(client.get("/login").text)
    answer = client.post("/login", data={"token": token, "key": key})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.fixture
def visitor_of(services: Services) -> VisitorOf:
    """Return a client that has logged in with a key of just these scopes."""
    app = create_app(services)

    def client(*scopes: Scope, name: str = "desk") -> TestClient:
        with services.database.transaction() as session:
            _, secret = api_keys.create_key(session, name=name, scopes=scopes)
        made = TestClient(app, follow_redirects=False)
        log_in(made, secret)
        return made

    return client


@pytest.fixture
def operator(visitor_of: VisitorOf) -> TestClient:
    """Somebody who may do everything."""
    return visitor_of(Scope.ADMIN)

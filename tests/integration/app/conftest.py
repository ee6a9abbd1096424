"""Fixtures of the tests that need no worker: one database for all of them, emptied for each."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text

from app.embedded import EmbeddedServers
from app.schema import all_tables
from app.services import Services
from tests.support.emptying import empty
from tests.support.logbook import faults
from tests.support.workshop import Workshop


@pytest.fixture(scope="session")
def app_database(servers: EmbeddedServers, template: str) -> Engine:
    """The owner's access to the database that all tests of ``app`` share."""
    admin = create_engine(
        servers.migration_url.replace("/expunge?", "/postgres?"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE test_app TEMPLATE {template}"))
    admin.dispose()
    return create_engine(servers.migration_url.replace("/expunge?", "/test_app?"))


@pytest.fixture
def database_url(servers: EmbeddedServers, app_database: Engine) -> str:
    """An empty database: emptying one is ten times as fast as making one."""
    with app_database.begin() as connection:
        empty(connection, all_tables().tables)
    return _url(servers, "test_app")


@pytest.fixture
def workshop(services: Services) -> Iterator[Workshop]:
    """A dataset of forty records, and every step of a run by hand; the log tells all of it."""
    workshop = Workshop(services)
    yield workshop
    if not workshop.forged:
        assert faults(services) == []


def _url(servers: EmbeddedServers, database: str) -> str:
    return servers.database_url.replace("/expunge?", f"/{database}?")

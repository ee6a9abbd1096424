"""One database for all integration tests of a process, emptied for each."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text

from app.embedded import EmbeddedServers
from app.schema import all_tables
from tests.support.computed_once import computed_once
from tests.support.emptying import empty

# What a test has left running would keep its tables locked.
_OTHERS_OFF = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture(autouse=True, scope="module")
def _computed_once() -> Iterator[None]:
    with computed_once():
        yield


@pytest.fixture(scope="session")
def app_database(servers: EmbeddedServers, template: str) -> Engine:
    """The owner's access to the database that all integration tests of a process share."""
    admin = create_engine(
        servers.migration_url.replace("/expunge?", "/postgres?"), isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE test_integration TEMPLATE {template}"))
    admin.dispose()
    url = servers.migration_url.replace("/expunge?", "/test_integration?")
    # Without a pool: tests that cut all connections may not cut the owner's.
    return create_engine(url, poolclass=NullPool)


@pytest.fixture
def database_url(servers: EmbeddedServers, app_database: Engine) -> str:
    """An empty database: emptying one is ten times as fast as making one."""
    with app_database.begin() as connection:
        connection.execute(_OTHERS_OFF)
        empty(connection, all_tables().tables)
    return _url(servers, "test_integration")


def _url(servers: EmbeddedServers, database: str) -> str:
    return servers.database_url.replace("/expunge?", f"/{database}?")

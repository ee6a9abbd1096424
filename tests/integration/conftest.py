"""One database for all integration tests of a process, emptied for each."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, Pool, create_engine, text

from app.operations.schema import all_tables
from app.runtime.database import engine
from app.runtime.embedded import EmbeddedServers
from tests.support.computed_once import computed_once
from tests.support.emptying import empty
from tests.support.fixtures import as_admin, url_of

_NAME = "test_integration"
# What a test has left running would keep its tables locked; what is idle is in a pool.
_BUSY_OFF = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity AS other"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state <> 'idle'"
    " OR EXISTS (SELECT 1 FROM pg_locks WHERE pg_locks.pid = other.pid))"
)


@pytest.fixture(autouse=True, scope="module")
def _computed_once() -> Iterator[None]:
    with computed_once():
        yield


@pytest.fixture(scope="session")
def app_database(servers: EmbeddedServers, template: str) -> Engine:
    """The owner's access to the database that all integration tests of a process share."""
    with as_admin(servers) as execute:
        execute(f"CREATE DATABASE {_NAME} TEMPLATE {template}")
    url = servers.migration_url.replace("/expunge?", f"/{_NAME}?")
    return create_engine(url, pool_pre_ping=True)  # some tests cut all connections


@pytest.fixture(scope="session")
def _connected_once(_compiled_once: None) -> Iterator[None]:
    """Have one pool of connections to the shared database: new ones know nothing of its tables."""
    made = engine._engine
    pools: dict[object, Pool] = {}

    def share(url: str, limit_ms: int, *, connections: int, process: str | None = None) -> Engine:
        fresh = made(url, limit_ms, connections=connections, process=process)
        if f"/{_NAME}?" in url and process is None:
            fresh.pool = pools.setdefault((url, limit_ms, connections), fresh.pool)
            fresh.dispose = lambda close=True: None  # type: ignore[method-assign]
        return fresh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_engine", share)
        yield


@pytest.fixture
def database_url(servers: EmbeddedServers, app_database: Engine, _connected_once: None) -> str:
    """An empty database: emptying one is ten times as fast as making one."""
    with app_database.begin() as connection:
        connection.execute(_BUSY_OFF)
        empty(connection, all_tables().tables)
    return url_of(servers, _NAME)

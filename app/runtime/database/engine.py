"""The database: one declarative base, one way to open a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import (
    Connection,
    DateTime,
    Engine,
    LargeBinary,
    MetaData,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from app.domain.errors import ConfigurationError

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}

PROCESSES = "expunge "
"""How the ``application_name`` of each process of the service begins."""
# None is the column's NULL: JSON's own null would be a value to every query.
_JSON = JSONB(none_as_null=True)
_CONNECT_S = 10
_PREPARED = 400
"""How many statements a connection keeps prepared: more than a request's way takes, all told."""
_BESIDE = 4
_IDLE = "idle_in_transaction_session_timeout"
_LIMIT = "SELECT set_config(%s, %s, %s) WHERE current_setting(%s) = '0'"
IDLE_IN_TRANSACTION_S = 300.0
"""Longer than any transaction of the service waits for an object store or a planner."""


class Base(DeclarativeBase):
    """Root of all tables; constraint names are fixed so that migrations can name them."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        dict[str, Any]: _JSON,
        list[str]: _JSON,
        list[int]: _JSON,
        list[dict[str, Any]]: _JSON,
        bytes: LargeBinary,
    }


class Database:
    """An engine and its transactions.

    Parameter values never appear in errors or logs (``hide_parameters``). A server that does not
    answer is given up after the URL's ``connect_timeout``, or ten seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
        most_connections: int = 40,
        process: str | None = None,
    ) -> None:
        """Connect when first used.

        Args:
            url: of the database.
            idle_in_transaction_s: how long a transaction may be idle before Postgres ends it. A
                frozen process holds its locks no longer than that. A limit that the role, the
                database or the URL sets has priority.
            most_connections: how many transactions there are at once, beside short ones.
            process: what this process of the service is called where others look for it
                (``processes.py``).
        """
        limit_ms = max(1, round(idle_in_transaction_s * 1000))
        self.engine = _engine(url, limit_ms, connections=most_connections, process=process)
        self._beside = _engine(url, limit_ms, connections=_BESIDE, process=process)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        self._snapshots = sessionmaker(
            self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            ),
            expire_on_commit=False,
        )
        self._autocommitting = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a session that commits when the block ends and rolls back when it raises."""
        with self._sessions.begin() as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """Open a session that reads, and whose statements all see the same moment."""
        with self._snapshots.begin() as session:
            yield session

    @contextmanager
    def beside(self) -> Iterator[Session]:
        """Open a short transaction while the caller may have another one open.

        It has connections of its own: callers that each held one and waited for a second would wait
        for each other. So the block must open no further transaction.
        """
        with Session(self._beside, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def at_once(self) -> Iterator[Connection]:
        """Open a connection on which each statement is a transaction of its own.

        The server ends it: no lock lasts longer than the statement, even if this process is frozen.
        """
        with self._autocommitting.connect() as connection:
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()
        self._beside.dispose()


def is_away(error: Exception) -> bool:
    """Say whether an error means that no server was reached, or that it went away."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, OperationalError | InterfaceError):
        return getattr(error.orig, "sqlstate", None) is None
    return isinstance(error, PoolTimeoutError)


def _engine(url: str, limit_ms: int, *, connections: int, process: str | None = None) -> Engine:
    """Return an engine that keeps half of its connections open when they are not used."""
    kept = (connections + 1) // 2
    options: dict[str, Any] = {}
    if "connect_timeout" not in make_url(url).query:
        options["connect_timeout"] = _CONNECT_S
    if process is not None:
        options["application_name"] = f"{PROCESSES}{process}"
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=kept,
        max_overflow=connections - kept,
        pool_use_lifo=True,  # what is prepared on one connection is of no use on another
        connect_args=options,
    )
    # Many rows in one statement: psycopg would send them in a pipeline (see direct.py).
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "connect", partial(_prepare, limit_ms))
    event.listen(engine, "begin", partial(_limit_if_pooled, limit_ms))
    return engine


def _prepare(limit_ms: int, connection: Any, _record: object) -> None:  # noqa: ANN401
    """Set what a session has, and find out whether the next transaction has another session."""
    # Moments are read in the session's zone; a pooler restores it for each of its clients.
    row = connection.execute("SELECT set_config('TimeZone', 'UTC', false), pg_backend_pid()")
    # A pooler gives its clients numbers of its own. Statements that one client has prepared are
    # not there, or are another client's, in the session that has its next transaction.
    if row.fetchone()[1] != connection.info.backend_pid:
        connection.prepare_threshold = None
    else:
        connection.prepared_max = _PREPARED
        connection.execute(_LIMIT, (_IDLE, str(limit_ms), False, _IDLE))
    connection.commit()


def is_pooled(connection: Connection) -> bool:
    """Say whether a pooler is between a connection and Postgres."""
    driver: Any = connection.connection.driver_connection
    return driver.prepare_threshold is None


def _limit_if_pooled(limit_ms: int, connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    if is_pooled(connection) and not driver.autocommit:
        driver.execute(_LIMIT, (_IDLE, str(limit_ms), True, _IDLE))


_CONNECTED = text(
    "SELECT DISTINCT application_name,"
    " coalesce('from ' || host(client_addr), 'on the database''s machine') FROM pg_stat_activity"
    " WHERE datname = current_database() AND starts_with(application_name, :prefix) ORDER BY 1, 2"
)


def require_none(database: Database) -> None:
    """Check that no API, dispatcher or run of a worker is connected to the ledger.

    A process that holds no connection is not seen: an idle worker, which reads its keys at each
    run, or an API that was not called since the database was started again.

    Raises:
        ConfigurationError: some are; the message says which, and where they connect from. Or a
            pooler is in between, whose connections have the name of whoever used them last.
    """
    with database.transaction() as session:
        if is_pooled(session.connection()):
            raise ConfigurationError(
                "a connection pooler hides which processes run: for this command, let "
                "EXPUNGE_DATABASE_URL lead to PostgreSQL itself"
            )
        found = session.execute(_CONNECTED, {"prefix": PROCESSES}).all()
    if found:
        running = ", ".join(f"{name.removeprefix(PROCESSES)} ({place})" for name, place in found)
        raise ConfigurationError(f"the service runs: {running}; stop it on every machine first")


class Logged:
    """A table with the digest of each row in the log: see ``app/evidence/log/writing.py``."""

    __left_out__: ClassVar[frozenset[str]] = frozenset()
    """Columns that change without an entry, so no digest tells of them."""

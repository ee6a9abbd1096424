"""Statements that go to Postgres directly: for the ones that every call waits for.

They bypass the ORM and its compilation of statements, which costs more than most of them do.

Psycopg's pipelines would save round trips too. But they end with a message after which Postgres no
longer ends an idle transaction, and its locks would stay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import args_row
from sqlalchemy import Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

Made = TypeVar("Made")
_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def prepared(statement: Executable) -> bytes:
    """Compile a statement for ``Direct``, with named parameters.

    Do it once: this is the expensive part. Values must have types that psycopg supports itself.
    """
    return str(statement.compile(dialect=_DIALECT)).encode()  # type: ignore[attr-defined]


class Direct:
    """Runs statements."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def read(
        self, statement: bytes, parameters: Mapping[str, object], made: Callable[..., Made]
    ) -> list[Made]:
        """Return a statement's rows, each ``made`` of its columns."""
        cursor = self._connection.cursor(row_factory=args_row(made))
        return cursor.execute(statement, parameters).fetchall()

    def run(self, statement: bytes, parameters: Mapping[str, object]) -> None:
        """Run a statement whose rows, if there are any, are not needed."""
        self._connection.execute(statement, parameters)

    def copy(self, statement: bytes, rows: Iterable[tuple[object, ...]]) -> None:
        """Carry out a ``COPY … FROM STDIN`` of these rows."""
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)


@contextmanager
def directly(session: Session) -> Iterator[Direct]:
    """Run statements within a session's transaction.

    The session is flushed first. Its objects do not see what is done here.

    Raises:
        DBAPIError: one of them failed, as SQLAlchemy raises it.
    """
    session.flush()
    connection = session.connection()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        yield Direct(driver)
    except psycopg.Error as error:
        raise DBAPIError.instance(
            None,
            None,
            error,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=driver.closed,
            dialect=connection.dialect,
        ) from error

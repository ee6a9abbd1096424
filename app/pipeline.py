"""Statements that are sent to Postgres together, so that one round trip serves them all.

Each one runs as if it had come alone, with a view of the data of its own, in the order of sending.
They bypass the ORM and what compiles statements anew: this is for what every call waits for.
"""

from collections.abc import Callable, Iterator, Mapping
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
    """Return a statement as ``Pipeline.send`` takes it, its parameters by their names.

    Do it once: this is what costs. Values must be what psycopg reads and writes by itself.
    """
    return str(statement.compile(dialect=_DIALECT)).encode()  # type: ignore[attr-defined]


class Pipeline:
    """What takes statements on, one after the other."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def send(
        self, statement: bytes, parameters: Mapping[str, object], made: Callable[..., Made]
    ) -> Callable[[], list[Made]]:
        """Send a statement that returns rows.

        Returns:
            What waits for the rows, each ``made`` of its columns; ask it once.
        """
        cursor = self._connection.cursor(row_factory=args_row(made))
        return cursor.execute(statement, parameters).fetchall

    def tell(self, statement: bytes, parameters: Mapping[str, object]) -> None:
        """Send a statement whose rows, if there are any, nobody needs."""
        self._connection.execute(statement, parameters)


@contextmanager
def pipelined(session: Session) -> Iterator[Pipeline]:
    """Send statements within a session's transaction; at the end of the block all have run.

    What the session holds back is written first. Its objects learn nothing of what is sent here.

    Raises:
        DBAPIError: one of them failed, as SQLAlchemy raises it.
    """
    session.flush()
    connection = session.connection()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.pipeline():
            yield Pipeline(driver)
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

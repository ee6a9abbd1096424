"""Rows that go to Postgres by ``COPY``, without SQLAlchemy: millions of them at once.

Psycopg's pipelines would save round trips too. But they end with a message after which Postgres no
longer ends an idle transaction, and its locks would stay.
"""

from collections.abc import Iterable
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


def copy_rows(session: Session, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Carry out a ``COPY … FROM STDIN`` within a session's transaction, which is flushed first.

    Raises:
        DBAPIError: it failed, as SQLAlchemy raises it.
    """
    session.flush()
    connection = session.connection()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        # The server's context of the error is the row that failed.
        reported = type(error)(error.diag.message_primary or str(error))
        raise DBAPIError.instance(
            None,
            None,
            reported,
            psycopg.Error,
            hide_parameters=True,
            connection_invalidated=driver.closed,
            dialect=connection.dialect,
        ) from None

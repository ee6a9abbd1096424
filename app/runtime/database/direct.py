"""Rows that go to Postgres by ``COPY``, without SQLAlchemy: millions of them at once.

Psycopg's pipelines would save round trips too. But they end with a message after which Postgres no
longer ends an idle transaction, and its locks would stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_ROWS_AT_ONCE: Final = 16384


def copy_parts(session: Session, statement: str, parts: Iterable[bytes]) -> None:
    """Carry out a ``COPY … FROM STDIN`` within a session's transaction, which is flushed first.

    ``parts`` are rows in the statement's format, cut anywhere.

    Raises:
        DBAPIError: it failed, as SQLAlchemy raises it.
    """
    session.flush()
    connection = session.connection()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for part in parts:
                copy.write(part)
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


def binary_rows(
    columns: Sequence[npt.NDArray[np.uint8]], *, last_absent: npt.NDArray[np.bool_]
) -> Iterator[bytes]:
    """Yield rows in the format ``binary`` of ``COPY``, which Postgres need not parse.

    Args:
        columns: the fields as Postgres sends them, each of one width: (n, width), or (width,) for
            one that is the same in all rows.
        last_absent: in which rows the last column is NULL, (n,).
    """
    yield _SIGNATURE
    for begin in range(0, len(last_absent), _ROWS_AT_ONCE):
        absent = last_absent[begin : begin + _ROWS_AT_ONCE]
        fields = [np.frombuffer(len(columns).to_bytes(2), np.uint8)]
        for column in columns:
            fields.append(np.frombuffer(column.shape[-1].to_bytes(4), np.uint8))
            fields.append(column if column.ndim == 1 else column[begin : begin + _ROWS_AT_ONCE])
        rows = np.hstack(
            [np.broadcast_to(field, (len(absent), field.shape[-1])) for field in fields]
        )
        width = columns[-1].shape[-1]
        rows[absent, -width - 4 : -width] = 0xFF  # the length of NULL is -1, and nothing follows
        there = np.ones(rows.shape, dtype=np.bool_)
        there[absent, -width:] = False
        yield (rows if not absent.any() else rows[there]).tobytes()
    yield _TRAILER

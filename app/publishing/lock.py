"""The lock of who works at a placement: it lasts as long as the connection that holds it."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

_CLASS = 0x7075626C
"""These locks have two numbers; the other locks of the service have one."""
_TAKE = text("SELECT pg_try_advisory_lock(CAST(:class AS integer), hashtext(:id))")
_LEAVE = text("SELECT pg_advisory_unlock(CAST(:class AS integer), hashtext(:id))")


@contextmanager
def alone(connection: Connection, placement_id: str) -> Iterator[bool]:
    """Hold a placement's lock on a connection in autocommit; False if another one holds it."""
    numbers = {"class": _CLASS, "id": placement_id}
    is_alone = bool(connection.execute(_TAKE, numbers).scalar_one())
    try:
        yield is_alone
    finally:
        if is_alone:
            try:
                connection.execute(_LEAVE, numbers)
            except SQLAlchemyError:
                connection.invalidate()  # so that no pool keeps it, with the lock

"""Emptying tables that refuse to be emptied: what only their owner can do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

APPEND_ONLY = ("log_entries", "log_nodes", "log_checkpoints", "certificates")


def empty(connection: Connection, tables: Iterable[str]) -> None:
    """Delete every row of the tables and of all that refer to them."""
    with unprotected(connection):
        connection.execute(text(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE"))


@contextmanager
def unprotected(connection: Connection) -> Iterator[None]:
    """Let the tables' owner change append-only tables."""
    for table in APPEND_ONLY:
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER append_only"))
    yield
    for table in APPEND_ONLY:
        connection.execute(text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only"))

"""Emptying tables that refuse to be emptied: what only their owner can do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from app.schema import all_tables
from migrations.guards import APPEND_ONLY

_TRIGGERS = text(
    "SELECT tgrelid::regclass::text, tgname FROM pg_trigger"
    " WHERE tgname IN ('append_only', 'guard', 'forgotten', 'recognition')"
)
_LARGE_BYTES = 2_000_000
_LARGEST = text(
    "SELECT max(pg_relation_size(oid)) FROM pg_class"
    " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
)


def empty(connection: Connection, tables: Iterable[str]) -> None:
    """Delete every row of the tables, and count from the beginning.

    TRUNCATE takes as long for small tables as for large ones, fifty times as long as DELETE does
    for those that most tests leave behind.
    """
    wanted = set(tables)
    with unprotected(connection):
        if connection.execute(_LARGEST).scalar_one() > _LARGE_BYTES:
            names = ", ".join(wanted)
            connection.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
            return
        for table in reversed(all_tables().sorted_tables):
            if table.name in wanted:
                connection.execute(text(f"DELETE FROM {table.name}"))
        connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        connection.execute(text("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"))


@contextmanager
def unprotected(connection: Connection) -> Iterator[None]:
    """Let the tables' owner change append-only tables."""
    for table in APPEND_ONLY:
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER append_only"))
    yield
    for table in APPEND_ONLY:
        connection.execute(text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only"))


@contextmanager
def unguarded(connection: Connection) -> Iterator[None]:
    """Let the tables' owner change everything."""
    triggers = connection.execute(_TRIGGERS).all()
    for table, name in triggers:
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER {name}"))
    yield
    for table, name in triggers:
        connection.execute(text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}"))

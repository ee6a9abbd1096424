"""Emptying tables that refuse to be emptied: what only their owner can do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from app.operations.schema import all_tables
from migrations.guards import APPEND_ONLY

_TRIGGERS = text(
    "SELECT tgrelid::regclass::text, tgname FROM pg_trigger"
    " WHERE tgname IN ('append_only', 'guard', 'forgotten')"
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
        in_order = [t.name for t in reversed(all_tables().sorted_tables) if t.name in wanted]
        _together(
            connection,
            *(f"DELETE FROM {name}" for name in in_order),
            "SET CONSTRAINTS ALL IMMEDIATE",
            "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'",
        )


@contextmanager
def unprotected(connection: Connection) -> Iterator[None]:
    """Let the tables' owner change append-only tables."""
    _together(connection, *(f"ALTER TABLE {t} DISABLE TRIGGER append_only" for t in APPEND_ONLY))
    yield
    again = "ENABLE ALWAYS TRIGGER append_only"
    _together(connection, *(f"ALTER TABLE {table} {again}" for table in APPEND_ONLY))


def _together(connection: Connection, *statements: str) -> None:
    """Run statements without a way to the server for each."""
    connection.exec_driver_sql("; ".join(statements), execution_options={"no_parameters": True})


@contextmanager
def unguarded(connection: Connection) -> Iterator[None]:
    """Let the tables' owner change everything."""
    triggers = connection.execute(_TRIGGERS).all()
    for table, name in triggers:
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER {name}"))
    yield
    for table, name in triggers:
        connection.execute(text(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}"))

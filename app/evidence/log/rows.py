"""What the log says of rows: the SHA-256 of each as canonical JSON, when a transaction ends.

PostgreSQL makes the JSON, from all columns of a table but those that it leaves out: moments as
seconds since 1970, bytes in hex, the members in the order and spelling of ``jsonb``. So no row is
read by Python, neither here nor by ``app/operations/fsck_rows.py``, which asks for the same again.

A transaction holds the locks of the rows that it changed until it ends, so the digests that it
reads last are those that it commits, and of two that change one row the later has the later entry.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Column, DateTime, LargeBinary, TextClause, event, inspect, text
from sqlalchemy.orm import Mapper, Session, SessionTransaction

from app.runtime.database.logged import Logged

_CHANGED = "expunge.log.changed"


@cache
def columns(table: Mapper[Any]) -> dict[str, Column[Any]]:
    """Return the columns of which a row's digest is made, by name."""
    left_out = table.class_.__left_out__
    return {name: column for name, column in table.columns.items() if name not in left_out}


@cache
def query(table: Mapper[Any]) -> str:
    """Return the SQL for the name, ``table/id``, and the digest of every row of a table."""
    (key,) = table.primary_key
    members = ", ".join(f"'{name}', {_json(column)}" for name, column in columns(table).items())
    return (
        f"SELECT '{_name(table)}/' || {key.name} AS row, encode(sha256(convert_to("  # noqa: S608
        f"jsonb_build_object({members})::text, 'UTF8')), 'hex') AS sha256 FROM {_name(table)}"
    )


def changed(session: Session, table: type[Logged], ids: Iterable[str]) -> None:
    """Say which rows a statement has inserted or changed; those of the session are known."""
    session.info.setdefault(_CHANGED, {}).setdefault(inspect(table), set()).update(ids)


def digests(session: Session) -> dict[str, str]:
    """Return the digests of the rows that the transaction has changed, by name.

    None was deleted: the service's role may not.
    """
    of: dict[Mapper[Any], set[str]] = session.info.pop(_CHANGED, {})
    if not of:
        return {}
    ids = {_name(table): sorted(ids) for table, ids in of.items()}
    found = session.execute(_changed_ones(frozenset(of)), ids)
    return {row: sha256 for row, sha256 in found.all()}  # noqa: C416 - each is a Row


@cache
def _changed_ones(tables: frozenset[Mapper[Any]]) -> TextClause:
    return text(" UNION ALL ".join(map(_some, tables)))


def _some(table: Mapper[Any]) -> str:
    (key,) = table.primary_key
    return f"{query(table)} WHERE {key.name} = ANY(:{_name(table)})"


def _name(table: Mapper[Any]) -> str:
    return str(table.class_.__tablename__)


def _json(column: Column[Any]) -> str:
    if isinstance(column.type, DateTime):
        return f'extract(epoch FROM "{column.name}")'
    if isinstance(column.type, LargeBinary):
        return f"encode(\"{column.name}\", 'hex')"
    return f'"{column.name}"'


@event.listens_for(Session, "before_flush")  # after it, what SQL computes is not known as changed
def _note(session: Session, _context: object, _instances: object) -> None:
    updated = (row for row in session.dirty if isinstance(row, Logged) and _is_changed(row))
    for row in (*session.new, *updated):
        if isinstance(row, Logged):
            ids = inspect(row).mapper.primary_key_from_instance(row)
            changed(session, type(row), ids)


def _is_changed(row: Logged) -> bool:
    state = inspect(row)
    return any(state.attrs[name].history.has_changes() for name in columns(state.mapper))


@event.listens_for(Session, "after_soft_rollback")
def _forget(session: Session, _previous: object) -> None:
    session.info.pop(_CHANGED, None)


@event.listens_for(Session, "after_transaction_create")
def _refuse_savepoint(_session: Session, transaction: SessionTransaction) -> None:
    """A part that is rolled back alone would leave entries and digests of what never was."""
    if transaction.nested:
        raise TypeError("a transaction that writes to the log has no savepoints")

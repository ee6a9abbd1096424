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

from app.runtime.database import Base
from app.runtime.database.logged import Logged

_CHANGED = "expunge.log.changed"
LoggedTable = Any
"""A table that inherits from ``Logged``."""


def tables() -> list[LoggedTable]:
    """Return the tables that the log follows, by name."""
    mapped = (m.class_ for m in Base.registry.mappers if issubclass(m.class_, Logged))
    return sorted(mapped, key=lambda table: str(table.__tablename__))


@cache
def columns(table: LoggedTable) -> dict[str, Column[Any]]:
    """Return the columns of which a row's digest is made, by name."""
    mapped = _mapper(table).columns
    return {name: column for name, column in mapped.items() if name not in table.__left_out__}


@cache
def query(table: LoggedTable) -> str:
    """Return the SQL for the name, ``table/id``, and the digest of every row of a table."""
    (key,) = _mapper(table).primary_key
    members = ", ".join(f"'{name}', {_json(column)}" for name, column in columns(table).items())
    return (
        f"SELECT '{key.table.key}/' || {key.name} AS row, encode(sha256(convert_to("  # noqa: S608
        f"jsonb_build_object({members})::text, 'UTF8')), 'hex') AS sha256 FROM {key.table.key}"
    )


def changed(session: Session, table: LoggedTable, ids: Iterable[str]) -> None:
    """Say which rows a statement has inserted or changed; those of the session are known."""
    session.info.setdefault(_CHANGED, {}).setdefault(table, set()).update(ids)


def digests(session: Session) -> dict[str, str]:
    """Return the digests of the rows that the transaction has changed, by name.

    None was deleted: the service's role may not.
    """
    of: dict[LoggedTable, set[str]] = session.info.pop(_CHANGED, {})
    if not of:
        return {}
    ids = {table.__tablename__: sorted(ids) for table, ids in of.items()}
    found = session.execute(_changed_ones(frozenset(of)), ids)
    return {row: sha256 for row, sha256 in found.all()}  # noqa: C416 - each is a Row


@cache
def _changed_ones(changed: frozenset[LoggedTable]) -> TextClause:
    return text(" UNION ALL ".join(map(_some, changed)))


def _some(table: LoggedTable) -> str:
    (key,) = _mapper(table).primary_key
    return f"{query(table)} WHERE {key.name} = ANY(:{key.table.key})"


def _json(column: Column[Any]) -> str:
    if isinstance(column.type, DateTime):
        return f'extract(epoch FROM "{column.name}")'
    if isinstance(column.type, LargeBinary):
        return f"encode(\"{column.name}\", 'hex')"
    return f'"{column.name}"'


def _mapper(table: LoggedTable) -> Mapper[Any]:
    mapper: Mapper[Any] = inspect(table)
    return mapper


@event.listens_for(Session, "before_flush")  # after it, what SQL computes is not known as changed
def _note(session: Session, _context: object, _instances: object) -> None:
    updated = (row for row in session.dirty if isinstance(row, Logged) and _is_changed(row))
    for row in (*session.new, *updated):
        if isinstance(row, Logged):
            changed(session, type(row), _mapper(type(row)).primary_key_from_instance(row))


def _is_changed(row: Logged) -> bool:
    table: LoggedTable = type(row)
    attributes = inspect(row).attrs
    return any(attributes[name].history.has_changes() for name in columns(table))


@event.listens_for(Session, "after_soft_rollback")
def _forget(session: Session, _previous: object) -> None:
    session.info.pop(_CHANGED, None)


@event.listens_for(Session, "after_transaction_create")
def _refuse_savepoint(_session: Session, transaction: SessionTransaction) -> None:
    """A part that is rolled back alone would leave entries and digests of what never was."""
    if transaction.nested:
        raise TypeError("a transaction that writes to the log has no savepoints")

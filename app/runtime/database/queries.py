"""Parts that many queries have."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import ARRAY, ColumnElement, Connection, Select, any_, func, literal, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.domain.errors import NotFoundError

Found = TypeVar("Found")
Query = TypeVar("Query", bound=Select[*tuple[Any, ...]])


def known(found: Found | None, kind: str, name: str) -> Found:
    """Return what was found; raise ``NotFoundError`` where nothing has this name."""
    if found is None:
        raise NotFoundError(kind, name)
    return found


def stored(session: Session, row: Found) -> Found:
    """Write a row, and return it with what the database made of it."""
    session.flush()
    session.refresh(row)
    return row


def database_time(database: Session | Connection) -> datetime:
    """Return the present moment by the database's clock, the only one that all hosts share."""
    moment: datetime = database.scalars(select(func.clock_timestamp())).one()
    return moment.astimezone(UTC)


def is_one_of(column: InstrumentedAttribute[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """Return whether a column has one of some values, which are one parameter however many."""
    return column == any_(literal(list(values), ARRAY(column.type)))


def newest_first(
    query: Query,
    created_at: InstrumentedAttribute[datetime],
    row_id: InstrumentedAttribute[str],
    *,
    after: tuple[datetime, str] | None = None,
    limit: int | None,
) -> Query:
    """Return a page of a query's rows, newest first, older than the cursor ``after``."""
    if after is not None:
        query = query.where(tuple_(created_at, row_id) < after)
    return query.order_by(created_at.desc(), row_id.desc()).limit(limit)

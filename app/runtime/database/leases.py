"""Leases on rows: a worker holds one until a moment by the database's clock, and may prolong it."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.domain.errors import LeaseLostError


class Leased:
    """The columns of work that one worker holds at a time; each new holder has a higher token."""

    fencing_token: Mapped[int] = mapped_column(BigInteger, server_default="0")
    lease_expires_at: Mapped[datetime | None]


def in_future(seconds: float) -> ColumnElement[datetime]:
    """Return the moment so many seconds from now."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


def prolong(
    connection: Session | Connection,
    table: type[Leased],
    *held: ColumnElement[bool],
    lease_s: float,
    what: str,
    progress: dict[str, Any] | None = None,
) -> None:
    """Prolong the lease on the row that is ``held``, in one statement, and record progress.

    Raises:
        LeaseLostError: the row is gone; ``what`` names the work.
    """
    values = (progress or {}) | {"lease_expires_at": in_future(lease_s)}
    prolonged = update(table).where(*held).values(values).returning(table.fencing_token)
    if connection.execute(prolonged).scalar() is None:
        raise LeaseLostError(f"the {what} is held by another worker or is over")


def shorten(session: Session, *tables: type[Leased], lease_s: float) -> None:
    """Shorten leases that end later than ``lease_s`` from now; rows that others lock are skipped.

    Such a lease means that the database's clock was set back: its worker may be long gone.
    """
    for table in tables:
        late = select(table).where(table.lease_expires_at > in_future(lease_s))
        for row in session.scalars(late.with_for_update(skip_locked=True)):
            row.lease_expires_at = in_future(lease_s)

"""What models, datasets and backbones have in common at their end.

An archived one keeps its name, and its row says when it ended. One that was deleted had released
nothing: its row stays for the log, and its name is free again.
"""

from datetime import UTC, datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from app.domain.errors import GoneError


class Ending:
    """The columns of what can be archived or deleted."""

    name: Mapped[str]
    archived_at: Mapped[datetime | None] = mapped_column(default=None)
    deleted_at: Mapped[datetime | None] = mapped_column(default=None)


def unique_name(table: str) -> Index:
    """Return the index that keeps names unique among what was not deleted."""
    return Index(f"uq_{table}_name", "name", unique=True, postgresql_where="deleted_at IS NULL")


def require_live(kind: str, row: Ending) -> None:
    """Raise ``GoneError`` if a model, dataset or backbone was archived, or deleted meanwhile."""
    if row.archived_at is not None:
        raise GoneError(f"{kind} {row.name!r} {archived_on(row.archived_at)}")
    if row.deleted_at is not None:
        raise GoneError(f"{kind} {row.name!r} was deleted")


def archived_on(moment: datetime) -> str:
    """Say since when something is archived."""
    return f"was archived on {moment.astimezone(UTC):%Y-%m-%d}: what it held was shredded"

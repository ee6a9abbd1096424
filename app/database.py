"""The database: one declarative base, one way to open a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import DateTime, LargeBinary, MetaData, create_engine
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Root of all tables; constraint names are fixed so that migrations can name them."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: JSONB,
        list[int]: JSONB,
        bytes: LargeBinary,
    }


class Database:
    """An engine and its transactions.

    Parameter values never appear in errors or logs (``hide_parameters``).
    """

    def __init__(self, url: str) -> None:
        self.engine = create_engine(
            url, hide_parameters=True, pool_pre_ping=True, pool_size=20, max_overflow=20
        )
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a session that commits when the block ends and rolls back when it raises."""
        with self._sessions.begin() as session:
            yield session

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()

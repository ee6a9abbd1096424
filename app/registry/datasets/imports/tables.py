"""Imports and how far they are."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged
from app.runtime.database.leases import Leased


class ImportRow(Logged, Leased, Base):
    """Files that are read into a dataset.

    A transaction that adds records moves the import on: ``files_done`` files and ``row_in_file``
    rows of the next one are in the dataset, and all counts are of them. A queued one may have a
    lease, too: until then, no other worker takes it.
    """

    __tablename__ = "imports"
    __left_out__ = frozenset(
        {
            *("fencing_token", "lease_expires_at", "attempt", "files", "files_done", "row_in_file"),
            *("total_rows", "rows", "already_present", "changed"),
        }
    )
    __table_args__ = (
        CheckConstraint(
            "state IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="state"
        ),
        CheckConstraint("rows = added + already_present + changed", name="rows"),
        Index("ix_imports_dataset_id_created_at_id", "dataset_id", "created_at", "id"),
        Index("ix_imports_active", "created_at", postgresql_where="state IN ('queued', 'running')"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    url: Mapped[str]
    """Where the files are (``Place``); it holds no secret."""
    state: Mapped[str]
    attempt: Mapped[int] = mapped_column(server_default="0")
    files: Mapped[list[dict[str, Any]] | None]
    """Each file's ``name``, ``version`` and ``rows`` (``SourceFile``); None until it was listed."""
    files_done: Mapped[int] = mapped_column(server_default="0")
    row_in_file: Mapped[int] = mapped_column(BigInteger, server_default="0")
    total_rows: Mapped[int | None] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger, server_default="0")
    added: Mapped[int] = mapped_column(BigInteger, server_default="0")
    already_present: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    failure_reason: Mapped[str | None]
    problems: Mapped[list[dict[str, Any]] | None]
    """Why a file's content was refused: each fault's file, row, column and reason."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

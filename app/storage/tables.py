"""Blobs: data stored outside the database."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base


class BlobRow(Base):
    """One stored object. The row outlives the object, as evidence that it was shredded."""

    __tablename__ = "blobs"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'live', 'doomed', 'shredded')", name="state"),
        CheckConstraint("object_deleted_at IS NULL OR state = 'shredded'", name="object_deleted"),
        Index(
            "ix_blobs_objects_left",
            "id",
            postgresql_where="state = 'shredded' AND object_deleted_at IS NULL",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    dataset_id: Mapped[str | None]
    """The dataset whose records the content may reveal; None for public weights."""
    run_id: Mapped[str | None] = mapped_column(index=True)
    """The run that writes it across transactions; None if one transaction writes it."""
    sha256: Mapped[str | None]
    """SHA-256 of the content, not of the encrypted object; the size is the content's, too."""
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    shredded_at: Mapped[datetime | None]
    """When the data key was destroyed; since then the object is unreadable."""
    object_deleted_at: Mapped[datetime | None]

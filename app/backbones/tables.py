"""Public backbones."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class BackboneRow(Base):
    """A network with public weights, which are uploaded once and never change."""

    __tablename__ = "backbones"
    __table_args__ = (
        CheckConstraint("classes >= 2", name="classes"),
        CheckConstraint(
            "(blob_id IS NULL) = (sha256 IS NULL) AND (blob_id IS NULL) = (size_bytes IS NULL)",
            name="weights",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    architecture: Mapped[dict[str, Any]]
    input_shape: Mapped[list[int]]
    classes: Mapped[int]
    source: Mapped[str]
    """Where the weights come from, in the uploader's words."""
    blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"))
    sha256: Mapped[str | None]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

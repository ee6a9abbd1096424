"""Public backbones."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.endings import Ending, unique_name
from app.runtime.database.engine import Logged


class BackboneRow(Logged, Ending, Base):
    """A network with public weights, which are uploaded once and never change."""

    __tablename__ = "backbones"
    __table_args__ = (
        CheckConstraint("classes >= 2", name="classes"),
        CheckConstraint("features >= 1", name="features"),
        CheckConstraint(
            "(blob_id IS NULL) = (sha256 IS NULL) AND (blob_id IS NULL) = (size_bytes IS NULL)",
            name="weights",
        ),
        unique_name("backbones"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    architecture: Mapped[dict[str, Any]]
    input_shape: Mapped[list[int]]
    classes: Mapped[int]
    layers: Mapped[list[dict[str, Any]]]
    """Whose outputs are the features of a frozen one; empty: the network's own output is."""
    features: Mapped[int | None]
    """How many features a frozen one makes of a record; null: workers find out."""
    source: Mapped[str]
    """Where the weights come from, in the uploader's words."""
    blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"))
    sha256: Mapped[str | None]
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

"""Signed certificates."""

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged


class CertificateRow(Logged, Base):
    """A signed statement about one version. ``envelope`` holds the exact JSON text.

    ``number`` counts a model's certificates from 1: each names the one before it by its digest.
    """

    __tablename__ = "certificates"
    __table_args__ = (UniqueConstraint("model_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    version_id: Mapped[str] = mapped_column(
        ForeignKey("versions.id", deferrable=True, initially="DEFERRED"), index=True
    )
    basis: Mapped[str]
    envelope: Mapped[str]
    sha256: Mapped[str]
    number: Mapped[int]

"""Signed certificates."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class CertificateRow(Base):
    """A signed statement about one version. ``envelope`` holds the exact JSON text."""

    __tablename__ = "certificates"
    __table_args__ = (Index("ix_certificates_model_id_created_at", "model_id", "created_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    version_id: Mapped[str] = mapped_column(
        ForeignKey("versions.id", deferrable=True, initially="DEFERRED"), index=True
    )
    basis: Mapped[str]
    envelope: Mapped[str]
    sha256: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

"""Certificates as they were signed."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class CertificateRow(Base):
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


class SigningKeyRow(Base):
    """A public key that signs or has signed; ``valid_until`` is null for the one in use."""

    __tablename__ = "signing_keys"
    __table_args__ = (
        Index(
            "uq_signing_keys_one_in_use",
            text("(valid_until IS NULL)"),
            unique=True,
            postgresql_where="valid_until IS NULL",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    pem: Mapped[str]
    valid_from: Mapped[datetime | None]
    valid_until: Mapped[datetime | None]
    compromised_since: Mapped[datetime | None]
    """The time since which someone else may have signed with it."""

"""Models and their versions."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class ModelRow(Base):
    """A lineage of versions: a name, an architecture, a dataset and a policy.

    A record of the dataset influenced the lineage if ``seq <= trained_through`` and it was not
    forgotten at ``trained_after_epoch`` (see ``app/registry/membership.py``).
    """

    __tablename__ = "models"
    __table_args__ = (
        CheckConstraint("weights_source IN ('train', 'upload')", name="weights_source"),
        CheckConstraint(
            "(trained_through IS NULL) = (trained_after_epoch IS NULL)", name="trained"
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    architecture: Mapped[dict[str, Any]]
    recipe: Mapped[dict[str, Any]]
    policy: Mapped[dict[str, Any]]
    weights_source: Mapped[str]
    split_salt: Mapped[bytes]
    trained_through: Mapped[int | None] = mapped_column(BigInteger)
    trained_after_epoch: Mapped[int | None] = mapped_column(BigInteger)
    tracking: Mapped[dict[str, Any] | None]
    """How the lineage was trained and what it forgot (see ``app/planning/tracking.py``)."""
    imported_blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"))
    head_version_id: Mapped[str | None] = mapped_column(
        ForeignKey("versions.id", use_alter=True, deferrable=True, initially="DEFERRED")
    )
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class VersionRow(Base):
    """One checkpoint of a model."""

    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        CheckConstraint("number >= 1", name="number"),
        CheckConstraint("state IN ('private', 'certified', 'retired', 'shredded')", name="state"),
        Index(
            "uq_versions_one_head",
            "model_id",
            unique=True,
            postgresql_where="state IN ('private', 'certified')",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), unique=True)
    number: Mapped[int]
    state: Mapped[str]
    blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"))
    certificate_id: Mapped[str] = mapped_column(
        ForeignKey("certificates.id", use_alter=True, deferrable=True, initially="DEFERRED")
    )
    sha256: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    covers_epoch: Mapped[int] = mapped_column(BigInteger)
    """Every record forgotten up to this epoch of the dataset is covered."""
    evaluation: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    retired_at: Mapped[datetime | None]
    reason: Mapped[str | None]

"""Models and their versions, and public backbones."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.endings import Ending, unique_name
from app.runtime.database.engine import Logged


class ModelRow(Logged, Ending, Base):
    """A lineage of versions: a name, an architecture, a dataset, a task and a policy.

    A record of the dataset influenced the lineage's head, or its imported weights, if
    ``seq <= trained_through`` and it was not forgotten at ``trained_after_epoch`` (see
    ``app/registry/membership.py``).
    """

    __tablename__ = "models"
    __table_args__ = (
        CheckConstraint("weights_source IN ('train', 'upload')", name="weights_source"),
        CheckConstraint(
            "(trained_through IS NULL) = (trained_after_epoch IS NULL)", name="trained"
        ),
        unique_name("models"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    architecture: Mapped[dict[str, Any]]
    task: Mapped[dict[str, Any]]
    recipe: Mapped[dict[str, Any]]
    policy: Mapped[dict[str, Any]]
    weights_source: Mapped[str]
    split_salt: Mapped[bytes]
    trained_through: Mapped[int | None] = mapped_column(BigInteger)
    trained_after_epoch: Mapped[int | None] = mapped_column(BigInteger)
    tracking: Mapped[dict[str, Any] | None]
    """How the lineage was trained and what it forgot (see ``app/planning/tracking.py``)."""
    is_spent: Mapped[bool] = mapped_column(server_default="false")
    """Whether a result from its present weights was thrown away for its score."""
    imported_blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"))
    head_version_id: Mapped[str | None] = mapped_column(
        ForeignKey("versions.id", use_alter=True, deferrable=True, initially="DEFERRED")
    )
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ModelCountRow(Base):
    """How many records a model's lineage has, by the member of an ensemble that learns from them.

    All are of member 0 where there are no members. The counts change in the transactions that
    begin and end a lineage and that forget its records, under the model's lock; see ``counts.py``.
    """

    __tablename__ = "model_counts"

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    member: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    records: Mapped[int] = mapped_column(BigInteger)
    """Those to learn from, forgotten ones included."""
    read: Mapped[int] = mapped_column(BigInteger)
    """Those of ``records`` that the training of the present weights read, where it is tracked."""
    retained: Mapped[int] = mapped_column(BigInteger)
    """Those of ``records`` that are not forgotten."""
    held_out_records: Mapped[int] = mapped_column(BigInteger)
    held_out: Mapped[int] = mapped_column(BigInteger)
    """Those of ``held_out_records`` that are not forgotten."""


class LineageRecordsRow(Base):
    """A block of the records of a lineage, or of a training that may begin one.

    What it says of them never changes, and is packed as ``TrainingSet`` reads it.
    """

    __tablename__ = "lineage_records"

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    membership: Mapped[bytes] = mapped_column(primary_key=True)
    """The digest of what decides which they are."""
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    facts: Mapped[bytes]
    ranks: Mapped[bytes | None]


class VersionRow(Logged, Base):
    """One checkpoint of a model."""

    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("model_id", "number"),
        CheckConstraint("number >= 1", name="number"),
        CheckConstraint("since_version BETWEEN 1 AND number", name="since_version"),
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
    statistics_blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"))
    """The sums over the retained records from which the next version can be solved, if any."""
    provenance: Mapped[bytes | None]
    """Encrypted under the key of its weights: what it can be computed again from, if it can."""
    certificate_id: Mapped[str] = mapped_column(
        ForeignKey("certificates.id", use_alter=True, deferrable=True, initially="DEFERRED")
    )
    sha256: Mapped[str]
    tensors_sha256: Mapped[str]
    """Of the tensors alone: the file also says which version it is."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    covers_epoch: Mapped[int] = mapped_column(BigInteger)
    """Every record forgotten up to this epoch of the dataset is covered."""
    trained_through: Mapped[int] = mapped_column(BigInteger)
    trained_after_epoch: Mapped[int] = mapped_column(BigInteger)
    """Both as in ``ModelRow``, for good."""
    since_version: Mapped[int]
    """The version with which its lineage began, by a training or an upload."""
    withheld: Mapped[bool]
    """Whether it was made to be private, and so was never released, whatever became of it."""
    evaluation: Mapped[dict[str, Any]]
    members: Mapped[list[dict[str, Any]] | None]
    """An ensemble's: the digest of each, and which version trained it."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    retired_at: Mapped[datetime | None]
    reason: Mapped[str | None]


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

"""Datasets, their records, the shards that hold them, and imports.

Owners' ids are never stored: ``record_key`` and ``subject_key`` are keyed hashes (pseudonyms.py).
"""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    String,
    UniqueConstraint,
    false,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.endings import Ending, unique_name
from app.runtime.database.engine import Logged
from app.runtime.database.leases import Leased


class DatasetRow(Logged, Ending, Base):
    """A named set of records with one schema."""

    __tablename__ = "datasets"
    __table_args__ = (
        CheckConstraint("schema ? 'columns'", name="schema"),
        CheckConstraint("forget_epoch >= 0", name="forget_epoch"),
        unique_name("datasets"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    schema: Mapped[dict[str, Any]]
    """What records consist of, as a ``TableSchema`` writes it."""
    public: Mapped[bool] = mapped_column(server_default=false())
    """Whether its owner asserts that nobody can ask for its records to be forgotten."""
    forget_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Counts accepted forget requests; each takes the next number."""
    pushed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """How many records it has ever got."""
    remembered: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """How many of them are not forgotten. Both change under the dataset's lock."""
    subject_notations: Mapped[list[str]] = mapped_column(ARRAY(String), server_default="{}")
    """How whole numbers among its subjects' ids are written (``Notation``)."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ShardRow(Base):
    """A stored table of records: ``seq`` and what is kept of them, without owners' ids."""

    __tablename__ = "shards"

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"))
    rows: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class FeatureShardRow(Base):
    """A frozen backbone's view of a shard: ``seq``, its features, and the targets of a task.

    It always holds the same records as its shard: an erasure rewrites both in one transaction.
    """

    __tablename__ = "feature_shards"
    __table_args__ = (
        UniqueConstraint(
            "shard_id",
            "backbone_id",
            "weights_sha256",
            "reading_sha256",
            name="uq_feature_shards_source",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    shard_id: Mapped[str] = mapped_column(ForeignKey("shards.id"))
    backbone_id: Mapped[str] = mapped_column(ForeignKey("backbones.id"), index=True)
    weights_sha256: Mapped[str]
    """Of the weights that made them: others may take the place of weights that were lost."""
    reading_sha256: Mapped[str]
    """Of how the task reads records."""
    blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"))


class RecordRow(Base):
    """One training example. The row outlives erasure, as evidence.

    It is stored, perhaps forgotten, erased. The same id may be pushed again once it is forgotten:
    that is another record, with its own row and number.
    """

    __tablename__ = "records"
    __table_args__ = (
        # Keys of two datasets differ, so the dataset need not be in their indexes.
        # One row of a key that is not forgotten; each request finds the others by it, too.
        Index(
            "uq_records_record_key",
            "record_key",
            "forgotten_epoch",
            unique=True,
            postgresql_nulls_not_distinct=True,
            postgresql_where="record_key IS NOT NULL",
        ),
        Index(
            "ix_records_erased_at",
            "erased_at",
            postgresql_where="erased_at IS NOT NULL AND record_key IS NOT NULL",
        ),
        Index(
            "ix_records_subject_key",
            "subject_key",
            postgresql_where="subject_key IS NOT NULL",
        ),
        # The rows of a push lie together: all of a dataset or a shard are in few blocks.
        Index(
            "ix_records_dataset_id_shard_id",
            "dataset_id",
            "shard_id",
            postgresql_using="brin",
            postgresql_ops={"dataset_id": "text_bloom_ops", "shard_id": "text_bloom_ops"},
            postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
        ),
        Index(
            "ix_records_dataset_id_forgotten_epoch",
            "dataset_id",
            "forgotten_epoch",
            postgresql_where="forgotten_epoch IS NOT NULL",
        ),
        CheckConstraint("(shard_id IS NULL) = (erased_at IS NOT NULL)", name="erased"),
        CheckConstraint("erased_at IS NULL OR forgotten_epoch IS NOT NULL", name="forgotten"),
        CheckConstraint(
            "(record_key IS NULL) = (sides IS NOT NULL)"
            " AND (record_key IS NOT NULL OR subject_key IS NULL)",
            name="evidence",
        ),
    )

    seq: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    dataset_id: Mapped[str]
    """The shard's dataset; it stays after erasure. No foreign key: for each record of a push, it
    would check the dataset's row, past every row version that concurrent requests left behind.
    Likewise the shard's, whose row comes in the same transaction and is never deleted: checking it
    for each of millions of records takes Postgres half as much time again."""
    record_key: Mapped[bytes | None]
    """None once the evidence is destroyed (``app/ledger/evidence.py``); ``subject_key`` too."""
    subject_key: Mapped[bytes | None]
    shard_id: Mapped[str | None]
    forgotten_epoch: Mapped[int | None] = mapped_column(BigInteger)
    """The epoch since when the record has been forgotten, for good; None while it is not."""
    erased_at: Mapped[datetime | None]
    sides: Mapped[dict[str, Any] | None]
    """What models still need of its destroyed keys: see ``Membership.side_of``."""


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
            *("total_rows", "rows", "already_present", "changed", "without_target"),
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
    without_target: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """How many of the rows a model does not learn from, by its name."""
    failure_reason: Mapped[str | None]
    problems: Mapped[list[dict[str, Any]] | None]
    """Why a file's content was refused: each fault's file, row, column and reason."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

"""Stored objects, data sets and their records; public backbones and their features of shards."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import JSONB, MOMENT, NOW, unique_name


def create() -> None:
    op.create_table(
        "blobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("dataset_id", sa.String),
        sa.Column("run_id", sa.String, index=True),
        sa.Column("sha256", sa.String),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("shredded_at", MOMENT),
        sa.Column("object_deleted_at", MOMENT),
        sa.CheckConstraint("state IN ('pending', 'live', 'doomed', 'shredded')", name="state"),
        sa.CheckConstraint(
            "object_deleted_at IS NULL OR state = 'shredded'", name="object_deleted"
        ),
        sa.Index(
            "ix_blobs_objects_left",
            "id",
            postgresql_where="state = 'shredded' AND object_deleted_at IS NULL",
        ),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("schema", JSONB, nullable=False),
        sa.Column("public", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("forget_epoch", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("pushed", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("remembered", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("subject_notations", sa.ARRAY(sa.String), server_default="{}", nullable=False),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint("schema ? 'columns'", name="schema"),
        sa.CheckConstraint("forget_epoch >= 0", name="forget_epoch"),
        unique_name("datasets"),
    )
    op.create_table(
        "shards",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column(
            "dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False, index=True
        ),
        sa.Column("blob_id", sa.String, sa.ForeignKey("blobs.id"), nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
    )
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("record_key", sa.LargeBinary, nullable=False),
        sa.Column("subject_key", sa.LargeBinary),
        sa.Column("shard_id", sa.String),
        sa.Column("forgotten_epoch", sa.BigInteger),
        sa.Column("erased_at", MOMENT),
        sa.CheckConstraint("(shard_id IS NULL) = (erased_at IS NOT NULL)", name="erased"),
        sa.CheckConstraint("erased_at IS NULL OR forgotten_epoch IS NOT NULL", name="forgotten"),
        sa.Index(
            "ix_records_dataset_id_forgotten_epoch",
            "dataset_id",
            "forgotten_epoch",
            postgresql_where="forgotten_epoch IS NOT NULL",
        ),
        sa.Index(
            "ix_records_dataset_id_shard_id",
            "dataset_id",
            "shard_id",
            postgresql_using="brin",
            postgresql_ops={"dataset_id": "text_bloom_ops", "shard_id": "text_bloom_ops"},
            postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
        ),
        sa.Index(
            "ix_records_subject_key", "subject_key", postgresql_where="subject_key IS NOT NULL"
        ),
        sa.Index(
            "uq_records_record_key",
            "record_key",
            "forgotten_epoch",
            unique=True,
            postgresql_nulls_not_distinct=True,
        ),
    )
    op.create_table(
        "imports",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, server_default="0", nullable=False),
        sa.Column("files", JSONB),
        sa.Column("files_done", sa.Integer, server_default="0", nullable=False),
        sa.Column("row_in_file", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("total_rows", sa.BigInteger),
        sa.Column("rows", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("added", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("already_present", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("changed", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("failure_reason", sa.String),
        sa.Column("problems", JSONB),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="state"
        ),
        sa.CheckConstraint("rows = added + already_present + changed", name="rows"),
        sa.Index(
            "ix_imports_active", "created_at", postgresql_where="state IN ('queued', 'running')"
        ),
        sa.Index("ix_imports_dataset_id_created_at_id", "dataset_id", "created_at", "id"),
    )
    op.create_table(
        "backbones",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("architecture", JSONB, nullable=False),
        sa.Column("input_shape", JSONB, nullable=False),
        sa.Column("classes", sa.Integer, nullable=False),
        sa.Column("layers", JSONB, nullable=False),
        sa.Column("features", sa.Integer),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, sa.ForeignKey("blobs.id")),
        sa.Column("sha256", sa.String),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint("classes >= 2", name="classes"),
        sa.CheckConstraint("features >= 1", name="features"),
        sa.CheckConstraint(
            "(blob_id IS NULL) = (sha256 IS NULL) AND (blob_id IS NULL) = (size_bytes IS NULL)",
            name="weights",
        ),
        unique_name("backbones"),
    )
    op.create_table(
        "feature_shards",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("shard_id", sa.String, sa.ForeignKey("shards.id"), nullable=False),
        sa.Column(
            "backbone_id", sa.String, sa.ForeignKey("backbones.id"), nullable=False, index=True
        ),
        sa.Column("weights_sha256", sa.String, nullable=False),
        sa.Column("reading_sha256", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, sa.ForeignKey("blobs.id"), nullable=False),
        sa.UniqueConstraint(
            "shard_id",
            "backbone_id",
            "weights_sha256",
            "reading_sha256",
            name="uq_feature_shards_source",
        ),
    )

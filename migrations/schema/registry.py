"""Datasets and their rows; models, the runs that make their versions, and the certificates."""

import sqlalchemy as sa
from alembic import op

from migrations.schema import JSONB, MOMENT, NOW, unique_name


def create_datasets() -> None:
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
        sa.Column("record_key", sa.LargeBinary),
        sa.Column("subject_key", sa.LargeBinary),
        sa.Column("shard_id", sa.String),
        sa.Column("forgotten_epoch", sa.BigInteger),
        sa.Column("erased_at", MOMENT),
        sa.Column("sides", JSONB),
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
        sa.CheckConstraint(
            "(record_key IS NULL) = (sides IS NOT NULL)"
            " AND (record_key IS NOT NULL OR subject_key IS NULL)",
            name="evidence",
        ),
        sa.Index(
            "ix_records_erased_at",
            "erased_at",
            postgresql_where="erased_at IS NOT NULL AND record_key IS NOT NULL",
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
            postgresql_where="record_key IS NOT NULL",
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
        sa.Column("without_target", JSONB, server_default="{}", nullable=False),
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


def create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column(
            "dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False, index=True
        ),
        sa.Column("architecture", JSONB, nullable=False),
        sa.Column("task", JSONB, nullable=False),
        sa.Column("recipe", JSONB, nullable=False),
        sa.Column("policy", JSONB, nullable=False),
        sa.Column("weights_source", sa.String, nullable=False),
        sa.Column("split_salt", sa.LargeBinary, nullable=False),
        sa.Column("trained_through", sa.BigInteger),
        sa.Column("trained_after_epoch", sa.BigInteger),
        sa.Column("tracking", JSONB),
        sa.Column("is_spent", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("imported_blob_id", sa.String, sa.ForeignKey("blobs.id")),
        sa.Column("head_version_id", sa.String),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint("weights_source IN ('train', 'upload')", name="weights_source"),
        sa.CheckConstraint(
            "(trained_through IS NULL) = (trained_after_epoch IS NULL)", name="trained"
        ),
        unique_name("models"),
    )
    op.create_table(
        "model_counts",
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), primary_key=True),
        sa.Column("member", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("read", sa.BigInteger, nullable=False),
        sa.Column("retained", sa.BigInteger, nullable=False),
        sa.Column("held_out_records", sa.BigInteger, nullable=False),
        sa.Column("held_out", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "lineage_records",
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), primary_key=True),
        sa.Column("membership", sa.LargeBinary, primary_key=True),
        sa.Column("block", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("facts", sa.LargeBinary, nullable=False),
        sa.Column("ranks", sa.LargeBinary),
    )
    for column in ("facts", "ranks"):  # compressing them would take longer than reading them
        op.execute(f"ALTER TABLE lineage_records ALTER COLUMN {column} SET STORAGE EXTERNAL")
    op.create_table(
        "runs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("plan", JSONB, nullable=False),
        sa.Column("attempt", sa.Integer, server_default="0", nullable=False),
        sa.Column("enqueued_at", MOMENT),
        sa.Column("forget_epoch", sa.BigInteger),
        sa.Column("trained_through", sa.BigInteger),
        sa.Column("counts", JSONB),
        sa.Column("phase", sa.String),
        sa.Column("step", sa.Integer),
        sa.Column("total_steps", sa.Integer),
        sa.Column("epsilon", sa.Double),
        sa.Column("loss", sa.Double),
        sa.Column("failure_reason", sa.String),
        sa.Column("phase_seconds", JSONB),
        sa.Column("reports", JSONB),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.CheckConstraint("kind IN ('train', 'certify', 'unlearn', 'refill')", name="kind"),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'published', 'failed', 'cancelled')",
            name="state",
        ),
        sa.CheckConstraint("epsilon IS NULL OR epsilon >= 0", name="epsilon"),
        sa.Index("ix_runs_created_at_id", "created_at", "id"),
        sa.Index("ix_runs_model_id_created_at", "model_id", "created_at"),
        sa.Index(
            "uq_runs_one_active",
            "model_id",
            unique=True,
            postgresql_where="kind <> 'refill' AND state IN ('queued', 'leased', 'running')",
        ),
        sa.Index(
            "uq_runs_one_refill",
            "model_id",
            unique=True,
            postgresql_where="kind = 'refill' AND state IN ('queued', 'leased', 'running')",
        ),
    )
    op.create_table(
        "member_trainings",
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("member", sa.Integer, primary_key=True),
        sa.Column("run_token", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("blob_id", sa.String),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.CheckConstraint("state IN ('waiting', 'leased', 'done')", name="state"),
        sa.CheckConstraint("member >= 0", name="member"),
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, sa.ForeignKey("blobs.id"), nullable=False),
        sa.Column("statistics_blob_id", sa.String, sa.ForeignKey("blobs.id")),
        sa.Column("provenance", sa.LargeBinary),
        sa.Column("certificate_id", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("tensors_sha256", sa.String, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("covers_epoch", sa.BigInteger, nullable=False),
        sa.Column("trained_through", sa.BigInteger, nullable=False),
        sa.Column("trained_after_epoch", sa.BigInteger, nullable=False),
        sa.Column("since_version", sa.Integer, nullable=False),
        sa.Column("withheld", sa.Boolean, nullable=False),
        sa.Column("evaluation", JSONB, nullable=False),
        sa.Column("members", JSONB),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("retired_at", MOMENT),
        sa.Column("reason", sa.String),
        sa.CheckConstraint("number >= 1", name="number"),
        sa.CheckConstraint("since_version BETWEEN 1 AND number", name="since_version"),
        sa.CheckConstraint(
            "state IN ('private', 'certified', 'retired', 'shredded')", name="state"
        ),
        sa.UniqueConstraint("model_id", "number"),
        sa.UniqueConstraint("run_id"),
        sa.Index(
            "uq_versions_one_head",
            "model_id",
            unique=True,
            postgresql_where="state IN ('private', 'certified')",
        ),
    )
    op.create_table(
        "certificates",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column(
            "version_id",
            sa.String,
            sa.ForeignKey("versions.id", deferrable=True, initially="DEFERRED"),
            nullable=False,
            index=True,
        ),
        sa.Column("basis", sa.String, nullable=False),
        sa.Column("envelope", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.UniqueConstraint("model_id", "number"),
    )
    # Each refers to a row that is inserted after it.
    _refer_later("models", "head_version_id", "versions")
    _refer_later("versions", "certificate_id", "certificates")


def _refer_later(table: str, column: str, to: str) -> None:
    op.create_foreign_key(
        f"fk_{table}_{column}", table, to, [column], ["id"], deferrable=True, initially="DEFERRED"
    )

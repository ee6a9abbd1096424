"""Stored objects, data sets and their records; public backbones and their features of shards."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import JSONB, MOMENT, NOW, unique_name


def create() -> None:
    create_blobs()
    create_datasets()
    create_shards()
    create_records()
    create_imports()
    create_backbones()
    create_feature_shards()


def create_blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("dataset_id", sa.String),
        sa.Column("run_id", sa.String),
        sa.Column("sha256", sa.String),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("shredded_at", MOMENT),
        sa.Column("object_deleted_at", MOMENT),
        sa.CheckConstraint(
            "object_deleted_at IS NULL OR state = 'shredded'", name=op.f("ck_blobs_object_deleted")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'live', 'doomed', 'shredded')", name=op.f("ck_blobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name="pk_blobs"),
    )
    op.create_index(
        "ix_blobs_objects_left",
        "blobs",
        ["id"],
        postgresql_where="state = 'shredded' AND object_deleted_at IS NULL",
    )
    op.create_index("ix_blobs_run_id", "blobs", ["run_id"])
    op.create_index("ix_blobs_state", "blobs", ["state"])


def create_datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("columns", JSONB),
        sa.Column("feature_shape", JSONB),
        sa.Column("feature_dtype", sa.String),
        sa.Column("feature_offset", sa.Double),
        sa.Column("feature_scale", sa.Double),
        sa.Column("feature_vocabulary", sa.Integer),
        sa.Column("classes", sa.Integer),
        sa.Column("encoding", JSONB),
        sa.Column("public", sa.Boolean, server_default=sa.false(), nullable=False),
        sa.Column("forget_epoch", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint("classes >= 2", name=op.f("ck_datasets_classes")),
        sa.CheckConstraint(
            "num_nonnulls(feature_shape, feature_dtype, feature_offset, feature_scale, classes)"
            " = CASE WHEN columns IS NULL THEN 5 ELSE 0 END",
            name=op.f("ck_datasets_schema"),
        ),
        sa.CheckConstraint(
            "columns IS NULL OR num_nonnulls(feature_vocabulary, encoding) = 0",
            name=op.f("ck_datasets_columns"),
        ),
        sa.CheckConstraint("forget_epoch >= 0", name=op.f("ck_datasets_forget_epoch")),
        sa.PrimaryKeyConstraint("id", name="pk_datasets"),
    )
    unique_name("datasets")


def create_shards() -> None:
    op.create_table(
        "shards",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name="fk_shards_blob_id"),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_shards_dataset_id"),
        sa.PrimaryKeyConstraint("id", name="pk_shards"),
    )
    op.create_index("ix_shards_dataset_id", "shards", ["dataset_id"])


def create_records() -> None:
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("record_key", sa.LargeBinary, nullable=False),
        sa.Column("subject_key", sa.LargeBinary),
        sa.Column("shard_id", sa.String),
        sa.Column("forgotten_epoch", sa.BigInteger),
        sa.Column("absences", sa.ARRAY(sa.BigInteger)),
        sa.Column("erased_at", MOMENT),
        sa.CheckConstraint(
            "(shard_id IS NULL) = (erased_at IS NOT NULL)", name=op.f("ck_records_erased")
        ),
        sa.CheckConstraint(
            "cardinality(absences) >= 2 AND cardinality(absences) % 2 = 0",
            name=op.f("ck_records_absences"),
        ),
        sa.CheckConstraint(
            "erased_at IS NULL OR forgotten_epoch IS NOT NULL", name=op.f("ck_records_forgotten")
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_records"),
    )
    op.create_index(
        "ix_records_changed",
        "records",
        ["dataset_id", sa.text("GREATEST(forgotten_epoch, absences[cardinality(absences)])")],
        postgresql_where="forgotten_epoch IS NOT NULL OR absences IS NOT NULL",
    )
    op.create_index(
        "ix_records_dataset_id_shard_id",
        "records",
        ["dataset_id", "shard_id"],
        postgresql_using="brin",
        postgresql_ops={"dataset_id": "text_bloom_ops", "shard_id": "text_bloom_ops"},
        postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
    )
    op.create_index(
        "ix_records_subject_key",
        "records",
        ["subject_key"],
        postgresql_where="subject_key IS NOT NULL",
    )
    op.create_index("uq_records_record_key", "records", ["record_key"], unique=True)


def create_imports() -> None:
    op.create_table(
        "imports",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, server_default="0", nullable=False),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.Column("files", JSONB),
        sa.Column("files_done", sa.Integer, server_default="0", nullable=False),
        sa.Column("row_in_file", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("total_rows", sa.BigInteger),
        *(
            sa.Column(name, sa.BigInteger, server_default="0", nullable=False)
            for name in ("rows", "added", "already_present", "changed", "forgotten")
        ),
        sa.Column("failure_reason", sa.String),
        sa.Column("problems", JSONB),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_imports_state"),
        ),
        sa.CheckConstraint(
            "rows = added + already_present + changed + forgotten", name=op.f("ck_imports_rows")
        ),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_imports_dataset_id"),
        sa.PrimaryKeyConstraint("id", name="pk_imports"),
    )
    op.create_index(
        "ix_imports_dataset_id_created_at_id", "imports", ["dataset_id", "created_at", "id"]
    )
    op.create_index(
        "ix_imports_active",
        "imports",
        ["created_at"],
        postgresql_where="state IN ('queued', 'running')",
    )


def create_backbones() -> None:
    op.create_table(
        "backbones",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("architecture", JSONB, nullable=False),
        sa.Column("input_shape", JSONB, nullable=False),
        sa.Column("classes", sa.Integer, nullable=False),
        sa.Column("layers", JSONB, nullable=False),
        sa.Column("features", sa.Integer),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("base_id", sa.String),
        sa.Column("public_dataset", sa.String),
        sa.Column("exponent", sa.Double),
        sa.Column("whitening", JSONB),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("failure", sa.String),
        sa.Column("blob_id", sa.String),
        sa.Column("sha256", sa.String),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint(
            "(blob_id IS NULL) = (sha256 IS NULL) AND (blob_id IS NULL) = (size_bytes IS NULL)",
            name=op.f("ck_backbones_weights"),
        ),
        sa.CheckConstraint("classes >= 2", name=op.f("ck_backbones_classes")),
        sa.CheckConstraint(
            "(base_id IS NULL) = (public_dataset IS NULL)"
            " AND (base_id IS NULL) = (exponent IS NULL)",
            name=op.f("ck_backbones_whitening"),
        ),
        sa.CheckConstraint(
            "(whitening IS NOT NULL) = (base_id IS NOT NULL AND sha256 IS NOT NULL)",
            name=op.f("ck_backbones_whitened"),
        ),
        sa.ForeignKeyConstraint(["base_id"], ["backbones.id"], name="fk_backbones_base_id"),
        sa.CheckConstraint("features >= 1", name=op.f("ck_backbones_features")),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name="fk_backbones_blob_id"),
        sa.PrimaryKeyConstraint("id", name="pk_backbones"),
    )
    unique_name("backbones")


def create_feature_shards() -> None:
    op.create_table(
        "feature_shards",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("shard_id", sa.String, nullable=False),
        sa.Column("backbone_id", sa.String, nullable=False),
        sa.Column("weights_sha256", sa.String, nullable=False),
        sa.Column("reading_sha256", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, nullable=False),
        sa.ForeignKeyConstraint(
            ["backbone_id"], ["backbones.id"], name="fk_feature_shards_backbone_id"
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name="fk_feature_shards_blob_id"),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name="fk_feature_shards_shard_id"),
        sa.PrimaryKeyConstraint("id", name="pk_feature_shards"),
        sa.UniqueConstraint(
            "shard_id",
            "backbone_id",
            "weights_sha256",
            "reading_sha256",
            name="uq_feature_shards_source",
        ),
    )
    op.create_index("ix_feature_shards_backbone_id", "feature_shards", ["backbone_id"])

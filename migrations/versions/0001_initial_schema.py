"""Initial schema.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key_hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
    )
    op.create_table(
        "blobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("shredded_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'live', 'doomed', 'shredded')", name=op.f("ck_blobs_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blobs")),
    )
    op.create_index(op.f("ix_blobs_state"), "blobs", ["state"], unique=False)
    op.create_index(op.f("ix_blobs_run_id"), "blobs", ["run_id"], unique=False)
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("feature_shape", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("feature_dtype", sa.String(), nullable=False),
        sa.Column("feature_offset", sa.Double(), nullable=False),
        sa.Column("feature_scale", sa.Double(), nullable=False),
        sa.Column("classes", sa.Integer(), nullable=False),
        sa.Column("forget_epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("classes >= 2", name=op.f("ck_datasets_classes")),
        sa.CheckConstraint("forget_epoch >= 0", name=op.f("ck_datasets_forget_epoch")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("name", name=op.f("uq_datasets_name")),
    )
    op.create_table(
        "log_entries",
        sa.Column("index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("index", name=op.f("pk_log_entries")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("topic", sa.String(), nullable=False),
        sa.Column("subject_id", sa.String(), nullable=False),
        sa.Column("available_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "topic IN ('schedule_model', 'enqueue_run')", name=op.f("ck_outbox_topic")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index("ix_outbox_available_at", "outbox", ["available_at"], unique=False)
    op.create_table(
        "forget_requests",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("api_key_id", sa.String(), nullable=False),
        sa.Column("external_id", sa.String(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("forget_epoch", sa.BigInteger(), nullable=False),
        sa.Column("record_count", sa.Integer(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure_reason", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('accepted', 'unlearning', 'certified', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_forget_requests_state"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_forget_requests_api_key_id")
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_forget_requests_dataset_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forget_requests")),
        sa.UniqueConstraint(
            "api_key_id", "external_id", name=op.f("uq_forget_requests_api_key_id_external_id")
        ),
        sa.UniqueConstraint(
            "api_key_id",
            "idempotency_key",
            name=op.f("uq_forget_requests_api_key_id_idempotency_key"),
        ),
    )
    op.create_index(
        op.f("ix_forget_requests_dataset_id"), "forget_requests", ["dataset_id"], unique=False
    )
    op.create_index(
        "ix_forget_requests_received_at_id", "forget_requests", ["received_at", "id"], unique=False
    )
    op.create_index(op.f("ix_forget_requests_state"), "forget_requests", ["state"], unique=False)
    op.create_table(
        "models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("architecture", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("recipe", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("policy", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("weights_source", sa.String(), nullable=False),
        sa.Column("split_salt", sa.LargeBinary(), nullable=False),
        sa.Column("trained_through", sa.BigInteger(), nullable=True),
        sa.Column("trained_after_epoch", sa.BigInteger(), nullable=True),
        sa.Column("imported_blob_id", sa.String(), nullable=True),
        sa.Column("head_version_id", sa.String(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "weights_source IN ('train', 'upload')", name=op.f("ck_models_weights_source")
        ),
        sa.CheckConstraint(
            "(trained_through IS NULL) = (trained_after_epoch IS NULL)",
            name=op.f("ck_models_trained"),
        ),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_models_dataset_id")),
        sa.ForeignKeyConstraint(
            ["head_version_id"],
            ["versions.id"],
            name=op.f("fk_models_head_version_id"),
            initially="DEFERRED",
            deferrable=True,
            use_alter=True,
        ),
        sa.ForeignKeyConstraint(
            ["imported_blob_id"], ["blobs.id"], name=op.f("fk_models_imported_blob_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_index(op.f("ix_models_dataset_id"), "models", ["dataset_id"], unique=False)
    op.create_table(
        "shards",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("blob_id", sa.String(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("upload_digest", sa.LargeBinary(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_shards_blob_id")),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_shards_dataset_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
    )
    op.create_index(op.f("ix_shards_dataset_id"), "shards", ["dataset_id"], unique=False)
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("dataset_id", sa.String(), nullable=False),
        sa.Column("record_key", sa.LargeBinary(), nullable=False),
        sa.Column("subject_key", sa.LargeBinary(), nullable=True),
        sa.Column("shard_id", sa.String(), nullable=True),
        sa.Column("forgotten_epoch", sa.BigInteger(), nullable=True),
        sa.Column("absences", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(shard_id IS NULL) = (erased_at IS NOT NULL)", name=op.f("ck_records_erased")
        ),
        sa.CheckConstraint(
            "erased_at IS NULL OR forgotten_epoch IS NOT NULL", name=op.f("ck_records_forgotten")
        ),
        sa.CheckConstraint(
            "cardinality(absences) >= 2 AND cardinality(absences) % 2 = 0",
            name=op.f("ck_records_absences"),
        ),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_records_shard_id")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_records")),
    )
    op.create_index(
        "ix_records_dataset_id_subject_key", "records", ["dataset_id", "subject_key"], unique=False
    )
    op.create_index(op.f("ix_records_shard_id"), "records", ["shard_id"], unique=False)
    op.create_index(
        "uq_records_dataset_id_record_key", "records", ["dataset_id", "record_key"], unique=True
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("plan", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("enqueued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("forget_epoch", sa.BigInteger(), nullable=True),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("total_steps", sa.Integer(), nullable=True),
        sa.Column("epsilon", sa.Double(), nullable=True),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("failure_reason", sa.String(), nullable=True),
        sa.Column("phase_seconds", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('train', 'certify', 'unlearn')", name=op.f("ck_runs_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'published', 'failed', 'cancelled')",
            name=op.f("ck_runs_state"),
        ),
        sa.CheckConstraint("epsilon IS NULL OR epsilon >= 0", name=op.f("ck_runs_epsilon")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_runs_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_model_id"), "runs", ["model_id"], unique=False)
    op.create_index(op.f("ix_runs_state"), "runs", ["state"], unique=False)
    op.create_index(
        "uq_runs_one_active",
        "runs",
        ["model_id"],
        unique=True,
        postgresql_where="state IN ('queued', 'leased', 'running')",
    )
    op.create_table(
        "forget_request_records",
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("record_seq", sa.BigInteger(), nullable=False),
        sa.Column("commitment", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["record_seq"], ["records.seq"], name=op.f("fk_forget_request_records_record_seq")
        ),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["forget_requests.id"],
            name=op.f("fk_forget_request_records_request_id"),
        ),
        sa.PrimaryKeyConstraint("request_id", "record_seq", name=op.f("pk_forget_request_records")),
    )
    op.create_index(
        op.f("ix_forget_request_records_record_seq"),
        "forget_request_records",
        ["record_seq"],
        unique=False,
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("blob_id", sa.String(), nullable=False),
        sa.Column("certificate_id", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("covers_epoch", sa.BigInteger(), nullable=False),
        sa.Column("evaluation", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('private', 'certified', 'retired', 'shredded')",
            name=op.f("ck_versions_state"),
        ),
        sa.CheckConstraint("number >= 1", name=op.f("ck_versions_number")),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_versions_blob_id")),
        sa.ForeignKeyConstraint(
            ["certificate_id"],
            ["certificates.id"],
            name=op.f("fk_versions_certificate_id"),
            initially="DEFERRED",
            deferrable=True,
            use_alter=True,
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_versions_model_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_versions_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_versions_model_id_number")),
        sa.UniqueConstraint("run_id", name=op.f("uq_versions_run_id")),
    )
    op.create_index(
        "uq_versions_one_head",
        "versions",
        ["model_id"],
        unique=True,
        postgresql_where="state IN ('private', 'certified')",
    )
    op.create_table(
        "certificates",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("basis", sa.String(), nullable=False),
        sa.Column("envelope", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_certificates_model_id")),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
            name=op.f("fk_certificates_version_id"),
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
    )
    op.create_index(
        "ix_certificates_model_id_created_at",
        "certificates",
        ["model_id", "created_at"],
        unique=False,
    )
    op.create_index(
        op.f("ix_certificates_version_id"), "certificates", ["version_id"], unique=False
    )
    op.create_table(
        "obligations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("certificate_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("basis", sa.String(), nullable=False),
        sa.Column("failure_reason", sa.String(), nullable=True),
        sa.CheckConstraint(
            "(state = 'certified') = (certificate_id IS NOT NULL)",
            name=op.f("ck_obligations_certificate"),
        ),
        sa.CheckConstraint(
            "state IN ('open', 'running', 'certified', 'failed', 'cancelled')",
            name=op.f("ck_obligations_state"),
        ),
        sa.ForeignKeyConstraint(
            ["certificate_id"], ["certificates.id"], name=op.f("fk_obligations_certificate_id")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_obligations_model_id")),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name=op.f("fk_obligations_request_id")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_obligations_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_obligations")),
        sa.UniqueConstraint(
            "request_id", "model_id", name=op.f("uq_obligations_request_id_model_id")
        ),
    )
    op.create_index(
        "ix_obligations_model_id_state", "obligations", ["model_id", "state"], unique=False
    )
    op.create_index(op.f("ix_obligations_run_id"), "obligations", ["run_id"], unique=False)
    op.create_foreign_key(
        "fk_models_head_version_id",
        "models",
        "versions",
        ["head_version_id"],
        ["id"],
        deferrable=True,
        initially="DEFERRED",
    )
    op.create_foreign_key(
        "fk_versions_certificate_id",
        "versions",
        "certificates",
        ["certificate_id"],
        ["id"],
        deferrable=True,
        initially="DEFERRED",
    )


def downgrade() -> None:
    op.drop_constraint("fk_versions_certificate_id", "versions")
    op.drop_constraint("fk_models_head_version_id", "models")
    op.drop_index(op.f("ix_obligations_run_id"), table_name="obligations")
    op.drop_index("ix_obligations_model_id_state", table_name="obligations")
    op.drop_table("obligations")
    op.drop_index(op.f("ix_certificates_version_id"), table_name="certificates")
    op.drop_index("ix_certificates_model_id_created_at", table_name="certificates")
    op.drop_table("certificates")
    op.drop_index(
        "uq_versions_one_head",
        table_name="versions",
        postgresql_where="state IN ('private', 'certified')",
    )
    op.drop_table("versions")
    op.drop_index(op.f("ix_forget_request_records_record_seq"), table_name="forget_request_records")
    op.drop_table("forget_request_records")
    op.drop_index(
        "uq_runs_one_active",
        table_name="runs",
        postgresql_where="state IN ('queued', 'leased', 'running')",
    )
    op.drop_index(op.f("ix_runs_state"), table_name="runs")
    op.drop_index(op.f("ix_runs_model_id"), table_name="runs")
    op.drop_table("runs")
    op.drop_index("uq_records_dataset_id_record_key", table_name="records")
    op.drop_index(op.f("ix_records_shard_id"), table_name="records")
    op.drop_index("ix_records_dataset_id_subject_key", table_name="records")
    op.drop_table("records")
    op.drop_index(op.f("ix_shards_dataset_id"), table_name="shards")
    op.drop_table("shards")
    op.drop_index(op.f("ix_models_dataset_id"), table_name="models")
    op.drop_table("models")
    op.drop_index(op.f("ix_forget_requests_state"), table_name="forget_requests")
    op.drop_index("ix_forget_requests_received_at_id", table_name="forget_requests")
    op.drop_index(op.f("ix_forget_requests_dataset_id"), table_name="forget_requests")
    op.drop_table("forget_requests")
    op.drop_index("ix_outbox_available_at", table_name="outbox")
    op.drop_table("outbox")
    op.drop_table("log_entries")
    op.drop_table("datasets")
    op.drop_index(op.f("ix_blobs_run_id"), table_name="blobs")
    op.drop_index(op.f("ix_blobs_state"), table_name="blobs")
    op.drop_table("blobs")
    op.drop_table("api_keys")

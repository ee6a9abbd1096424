"""Models, the runs that make their versions, and the certificates."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import JSONB, MOMENT, NOW, unique_name


def create() -> None:
    create_models()
    create_runs()
    create_member_trainings()
    create_versions()
    create_certificates()
    # Each refers to a row that is inserted after it.
    _refer_later("models", "head_version_id", "versions")
    _refer_later("versions", "certificate_id", "certificates")


def create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("architecture", JSONB, nullable=False),
        sa.Column("task", JSONB, nullable=False),
        sa.Column("recipe", JSONB, nullable=False),
        sa.Column("policy", JSONB, nullable=False),
        sa.Column("weights_source", sa.String, nullable=False),
        sa.Column("split_salt", sa.LargeBinary, nullable=False),
        sa.Column("trained_through", sa.BigInteger),
        sa.Column("trained_after_epoch", sa.BigInteger),
        sa.Column("tracking", JSONB),
        sa.Column("imported_blob_id", sa.String),
        sa.Column("head_version_id", sa.String),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("archived_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.CheckConstraint(
            "weights_source IN ('train', 'upload')", name=op.f("ck_models_weights_source")
        ),
        sa.CheckConstraint(
            "(trained_through IS NULL) = (trained_after_epoch IS NULL)",
            name=op.f("ck_models_trained"),
        ),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_models_dataset_id"),
        sa.ForeignKeyConstraint(
            ["imported_blob_id"], ["blobs.id"], name="fk_models_imported_blob_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
    )
    unique_name("models")
    op.create_index("ix_models_dataset_id", "models", ["dataset_id"])


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("plan", JSONB, nullable=False),
        sa.Column("attempt", sa.Integer, server_default="0", nullable=False),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.Column("enqueued_at", MOMENT),
        sa.Column("forget_epoch", sa.BigInteger),
        sa.Column("trained_through", sa.BigInteger),
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
        sa.CheckConstraint("kind IN ('train', 'certify', 'unlearn')", name=op.f("ck_runs_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'published', 'failed', 'cancelled')",
            name=op.f("ck_runs_state"),
        ),
        sa.CheckConstraint("epsilon IS NULL OR epsilon >= 0", name=op.f("ck_runs_epsilon")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_runs_model_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"])
    op.create_index("ix_runs_model_id", "runs", ["model_id"])
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_index(
        "uq_runs_one_active",
        "runs",
        ["model_id"],
        unique=True,
        postgresql_where="state IN ('queued', 'leased', 'running')",
    )


def create_member_trainings() -> None:
    op.create_table(
        "member_trainings",
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("run_token", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("fencing_token", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("lease_expires_at", MOMENT),
        sa.Column("blob_id", sa.String),
        sa.CheckConstraint("member >= 0", name=op.f("ck_member_trainings_member")),
        sa.CheckConstraint(
            "state IN ('waiting', 'leased', 'done')", name=op.f("ck_member_trainings_state")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_member_trainings_run_id"),
        sa.PrimaryKeyConstraint("run_id", "member", name="pk_member_trainings"),
    )


def create_versions() -> None:
    op.create_table(
        "versions",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("blob_id", sa.String, nullable=False),
        sa.Column("statistics_blob_id", sa.String),
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
        sa.CheckConstraint(
            "state IN ('private', 'certified', 'retired', 'shredded')",
            name=op.f("ck_versions_state"),
        ),
        sa.CheckConstraint("number >= 1", name=op.f("ck_versions_number")),
        sa.CheckConstraint(
            "since_version BETWEEN 1 AND number", name=op.f("ck_versions_since_version")
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name="fk_versions_blob_id"),
        sa.ForeignKeyConstraint(
            ["statistics_blob_id"], ["blobs.id"], name="fk_versions_statistics_blob_id"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_versions_model_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_versions_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_versions"),
        sa.UniqueConstraint("model_id", "number", name="uq_versions_model_id_number"),
        sa.UniqueConstraint("run_id", name="uq_versions_run_id"),
    )
    op.create_index(
        "uq_versions_one_head",
        "versions",
        ["model_id"],
        unique=True,
        postgresql_where="state IN ('private', 'certified')",
    )


def create_certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("version_id", sa.String, nullable=False),
        sa.Column("basis", sa.String, nullable=False),
        sa.Column("envelope", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_certificates_model_id"),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
            name="fk_certificates_version_id",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("id", name="pk_certificates"),
        sa.UniqueConstraint("model_id", "number", name="uq_certificates_model_id_number"),
    )
    op.create_index("ix_certificates_version_id", "certificates", ["version_id"])


def _refer_later(table: str, column: str, to: str) -> None:
    op.create_foreign_key(
        f"fk_{table}_{column}", table, to, [column], ["id"], deferrable=True, initially="DEFERRED"
    )

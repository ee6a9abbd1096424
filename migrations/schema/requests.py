"""Requests to forget, what each obliges to, and what is to be done next."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import CLOCK, MOMENT


def create() -> None:
    create_subject_requests()
    create_forget_requests()
    create_forget_request_records()
    create_accounted_requests()
    create_obligations()
    create_outbox()


def create_subject_requests() -> None:
    op.create_table(
        "subject_requests",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("api_key_id", sa.String, nullable=False),
        sa.Column("subject_request_id", sa.String, nullable=False),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("regulation", sa.String, nullable=False),
        sa.Column("status", sa.String),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')",
            name=op.f("ck_subject_requests_status"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name="fk_subject_requests_api_key_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_subject_requests"),
        sa.UniqueConstraint(
            "api_key_id",
            "subject_request_id",
            name="uq_subject_requests_api_key_id_subject_request_id",
        ),
    )


def create_forget_requests() -> None:
    op.create_table(
        "forget_requests",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("dataset_id", sa.String, nullable=False),
        sa.Column("api_key_id", sa.String, nullable=False),
        sa.Column("external_key", sa.LargeBinary),
        sa.Column("idempotency_key", sa.LargeBinary),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("forget_epoch", sa.BigInteger, nullable=False),
        sa.Column("record_count", sa.Integer, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("due_soon_noted_at", MOMENT),
        sa.Column("overdue_noted_at", MOMENT),
        sa.Column("completed_at", MOMENT),
        sa.Column("failure_reason", sa.String),
        sa.Column("callback_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("subject_request_id", sa.String),
        sa.CheckConstraint(
            "state IN ('accepted', 'unlearning', 'certified', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_forget_requests_state"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name="fk_forget_requests_api_key_id"
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_forget_requests_dataset_id"
        ),
        sa.ForeignKeyConstraint(
            ["subject_request_id"],
            ["subject_requests.id"],
            name="fk_forget_requests_subject_request_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_forget_requests"),
        sa.UniqueConstraint(
            "api_key_id", "external_key", name="uq_forget_requests_api_key_id_external_key"
        ),
        sa.UniqueConstraint(
            "api_key_id", "idempotency_key", name="uq_forget_requests_api_key_id_idempotency_key"
        ),
    )
    op.create_index(
        "ix_forget_requests_dataset_id_forget_epoch",
        "forget_requests",
        ["dataset_id", "forget_epoch"],
    )
    op.create_index("ix_forget_requests_external_key", "forget_requests", ["external_key"])
    op.create_index(
        "ix_forget_requests_open_due_at",
        "forget_requests",
        ["due_at"],
        postgresql_where="state NOT IN ('completed', 'cancelled')",
    )
    op.create_index("ix_forget_requests_received_at_id", "forget_requests", ["received_at", "id"])
    op.create_index("ix_forget_requests_state", "forget_requests", ["state"])
    op.create_index(
        "ix_forget_requests_subject_request_id", "forget_requests", ["subject_request_id"]
    )


def create_forget_request_records() -> None:
    op.create_table(
        "forget_request_records",
        sa.Column("request_id", sa.String, nullable=False),
        sa.Column("record_seq", sa.BigInteger, nullable=False),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(
            ["record_seq"], ["records.seq"], name="fk_forget_request_records_record_seq"
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name="fk_forget_request_records_request_id"
        ),
        sa.PrimaryKeyConstraint("request_id", "record_seq", name="pk_forget_request_records"),
    )
    op.create_index(
        "ix_forget_request_records_record_seq", "forget_request_records", ["record_seq"]
    )


def create_accounted_requests() -> None:
    counts = (
        *("covered_size", "excluded_size", "requests", "records", "excluded_records"),
        *("forgotten_through", "begun_at_epoch", "before_training"),
    )
    op.create_table(
        "accounted_requests",
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("since_version", sa.Integer, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in counts),
        sa.CheckConstraint(
            "covered_size >= records", name=op.f("ck_accounted_requests_covered_size")
        ),
        sa.CheckConstraint(
            "excluded_size >= excluded_records", name=op.f("ck_accounted_requests_excluded_size")
        ),
        sa.CheckConstraint(
            "records >= before_training", name=op.f("ck_accounted_requests_before_training")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_accounted_requests_model_id"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name="fk_accounted_requests_request_id"
        ),
        sa.PrimaryKeyConstraint(
            "model_id", "since_version", "number", name="pk_accounted_requests"
        ),
        sa.UniqueConstraint(
            *("model_id", "since_version", "request_id"),
            name="uq_accounted_requests_model_id_since_version_request_id",
        ),
    )


def create_obligations() -> None:
    op.create_table(
        "obligations",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("request_id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("run_id", sa.String),
        sa.Column("certificate_id", sa.String),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("basis", sa.String, nullable=False),
        sa.Column("failure_reason", sa.String),
        sa.CheckConstraint(
            "(state = 'certified') = (certificate_id IS NOT NULL)",
            name=op.f("ck_obligations_certificate"),
        ),
        sa.CheckConstraint(
            "state IN ('open', 'running', 'certified', 'failed', 'cancelled')",
            name=op.f("ck_obligations_state"),
        ),
        sa.ForeignKeyConstraint(
            ["certificate_id"], ["certificates.id"], name="fk_obligations_certificate_id"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_obligations_model_id"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name="fk_obligations_request_id"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_obligations_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_obligations"),
        sa.UniqueConstraint("request_id", "model_id", name="uq_obligations_request_id_model_id"),
    )
    op.create_index("ix_obligations_certificate_id", "obligations", ["certificate_id"])
    op.create_index("ix_obligations_model_id_state", "obligations", ["model_id", "state"])
    op.create_index("ix_obligations_run_id", "obligations", ["run_id"])


def create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("subject_id", sa.String, nullable=False),
        sa.Column("posted_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("available_at", MOMENT, nullable=False),
        sa.CheckConstraint(
            "topic IN ('schedule_model', 'enqueue_run', 'enqueue_members')",
            name=op.f("ck_outbox_topic"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_available_at", "outbox", ["available_at"])

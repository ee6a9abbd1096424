"""Callers; the log and the keys that sign it; requests, what they oblige to, and what is next."""

import sqlalchemy as sa
from alembic import op

from migrations.schema import CLOCK, JSONB, MOMENT, NOW


def create_access() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, server_default="key", nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("key_hash", sa.LargeBinary, nullable=False),
        sa.Column("scopes", JSONB, nullable=False),
        sa.Column("created_at", MOMENT, server_default=NOW, nullable=False),
        sa.Column("expires_at", MOMENT),
        sa.Column("last_used_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.CheckConstraint("kind IN ('key', 'oidc')", name="kind"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key_digest", sa.LargeBinary, primary_key=True),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("call_id", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("claimed_until", MOMENT, nullable=False),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("expires_at", MOMENT, nullable=False, index=True),
        sa.CheckConstraint("attempt >= 0", name="attempt"),
        sa.CheckConstraint(
            "length(key_digest) = 32 AND length(request_digest) = 32", name="digests"
        ),
    )


def create_log() -> None:
    op.create_table(
        "log_entries",
        sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("body", sa.String, nullable=False),
        sa.Index(
            "ix_log_entries_by", sa.text('substring(body, \'"by":"([^"]*)"\'::text)'), "index"
        ),
        sa.Index(
            "ix_log_entries_certificate",
            sa.text('substring(body, \'"certificate":"([^"]*)"\'::text)'),
            postgresql_where="kind = 'certificate.issued'",
        ),
        sa.Index("ix_log_entries_retirements", "index", postgresql_where="kind = 'key.retired'"),
    )
    op.create_table(
        "tree_nodes",
        sa.Column("tree", sa.String, primary_key=True),
        sa.Column("level", sa.SmallInteger, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("level BETWEEN 0 AND 62", name="level"),
        sa.CheckConstraint("position >= 0", name="position"),
        sa.CheckConstraint("length(hash) = 32", name="hash"),
    )
    op.create_table(
        "log_checkpoints",
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.CheckConstraint("size >= 1", name="size"),
        sa.CheckConstraint("length(root) = 32", name="root"),
    )
    op.create_table(
        "log_cosignatures",
        sa.Column("size", sa.BigInteger, primary_key=True),
        sa.Column("witness", sa.String, primary_key=True),
        sa.Column("line", sa.String, nullable=False),
    )
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("pem", sa.String, nullable=False),
        sa.Column("valid_from", MOMENT),
        sa.Column("valid_until", MOMENT),
        sa.Column("compromised_since", MOMENT),
        sa.Index(
            "uq_signing_keys_one_in_use",
            sa.text("(valid_until IS NULL)"),
            unique=True,
            postgresql_where="valid_until IS NULL",
        ),
    )


def create_requests() -> None:
    op.create_table(
        "subject_requests",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("api_key_id", sa.String, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("subject_request_id", sa.String, nullable=False),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("regulation", sa.String, nullable=False),
        sa.Column("status", sa.String),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="status"
        ),
        sa.UniqueConstraint("api_key_id", "subject_request_id"),
    )
    op.create_table(
        "forget_requests",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("dataset_id", sa.String, sa.ForeignKey("datasets.id"), nullable=False),
        sa.Column("api_key_id", sa.String, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("external_key", sa.LargeBinary, index=True),
        sa.Column("idempotency_key", sa.LargeBinary),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("forget_epoch", sa.BigInteger),
        sa.Column("record_count", sa.Integer, nullable=False),
        sa.Column("push_count", sa.Integer, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("due_soon_noted_at", MOMENT),
        sa.Column("overdue_noted_at", MOMENT),
        sa.Column("completed_at", MOMENT),
        sa.Column("failure_reason", sa.String),
        sa.Column("ground", sa.String),
        sa.Column("explanation", sa.String),
        sa.Column("extension_reason", sa.String),
        sa.Column("callback_count", sa.Integer, server_default="0", nullable=False),
        sa.Column("replacement_count", sa.Integer, server_default="0", nullable=False),
        sa.Column(
            "subject_request_id", sa.String, sa.ForeignKey("subject_requests.id"), index=True
        ),
        sa.CheckConstraint(
            "state IN ('received', 'refused', 'accepted', 'unlearning', 'certified', 'completed',"
            " 'failed', 'cancelled')",
            name="state",
        ),
        sa.CheckConstraint(
            "(forget_epoch IS NULL) = (state IN ('received', 'refused'))", name="forget_epoch"
        ),
        sa.CheckConstraint("(ground IS NULL) = (state <> 'refused')", name="ground"),
        sa.CheckConstraint("ground IS NOT NULL OR explanation IS NULL", name="explanation"),
        sa.UniqueConstraint("api_key_id", "external_key"),
        sa.UniqueConstraint("api_key_id", "idempotency_key"),
        sa.Index("ix_forget_requests_dataset_id_forget_epoch", "dataset_id", "forget_epoch"),
        sa.Index(
            "ix_forget_requests_open_due_at",
            "due_at",
            postgresql_where="completed_at IS NULL",
        ),
        sa.Index("ix_forget_requests_received_at_id", "received_at", "id"),
    )
    op.create_table(
        "forget_request_records",
        sa.Column("request_id", sa.String, sa.ForeignKey("forget_requests.id"), primary_key=True),
        sa.Column(
            "record_seq", sa.BigInteger, sa.ForeignKey("records.seq"), primary_key=True, index=True
        ),
        sa.Column("commitment", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "accounted_requests",
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), primary_key=True),
        sa.Column("since_version", sa.Integer, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("request_id", sa.String, sa.ForeignKey("forget_requests.id"), nullable=False),
        sa.Column("covered_size", sa.BigInteger, nullable=False),
        sa.Column("excluded_size", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("excluded_records", sa.BigInteger, nullable=False),
        sa.Column("forgotten_through", sa.BigInteger, nullable=False),
        sa.Column("begun_at_epoch", sa.BigInteger, nullable=False),
        sa.Column("before_training", sa.BigInteger, nullable=False),
        sa.CheckConstraint("covered_size >= records", name="covered_size"),
        sa.CheckConstraint("excluded_size >= excluded_records", name="excluded_size"),
        sa.CheckConstraint("records >= before_training", name="before_training"),
        sa.UniqueConstraint("model_id", "since_version", "request_id"),
    )
    op.create_table(
        "obligations",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("request_id", sa.String, sa.ForeignKey("forget_requests.id"), nullable=False),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id"), index=True),
        sa.Column("certificate_id", sa.String, sa.ForeignKey("certificates.id"), index=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("basis", sa.String, nullable=False),
        sa.Column("failure_reason", sa.String),
        sa.CheckConstraint(
            "state IN ('open', 'running', 'certified', 'failed', 'cancelled')", name="state"
        ),
        sa.CheckConstraint(
            "(state = 'certified') = (certificate_id IS NOT NULL)", name="certificate"
        ),
        sa.UniqueConstraint("request_id", "model_id"),
        sa.Index("ix_obligations_model_id_state", "model_id", "state"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("topic", sa.String, nullable=False),
        sa.Column("subject_id", sa.String, nullable=False),
        sa.Column("posted_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("available_at", MOMENT, nullable=False, index=True),
        sa.CheckConstraint(
            "topic IN ('schedule_model', 'enqueue_run', 'enqueue_members')", name="topic"
        ),
    )

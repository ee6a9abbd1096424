"""Callers; the log and its keys; requests, what they oblige to, and what is next; deliveries."""

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
        sa.Index(
            "ix_log_entries_origins",
            "index",
            postgresql_where="kind IN ('dataset.destroyed', 'weights.imported')",
        ),
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
        sa.Column("subject_request_id", sa.String),
        sa.Column("request_digest", sa.LargeBinary),
        sa.Column("salt", sa.LargeBinary),
        sa.Column("regulation", sa.String, nullable=False),
        sa.Column("status", sa.String),
        sa.Column("submitted_at", MOMENT, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="status"
        ),
        sa.CheckConstraint(
            "num_nulls(subject_request_id, request_digest, salt) IN (0, 3)", name="evidence"
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
        sa.Column("request_digest", sa.LargeBinary),
        sa.Column("salt", sa.LargeBinary),
        sa.Column("state", sa.String, nullable=False, index=True),
        sa.Column("forget_epoch", sa.BigInteger),
        sa.Column("record_count", sa.Integer, nullable=False),
        sa.Column("push_count", sa.Integer, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("due_soon_noted_at", MOMENT),
        sa.Column("overdue_noted_at", MOMENT),
        sa.Column("completed_at", MOMENT),
        sa.Column("refused_at", MOMENT),
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
        sa.CheckConstraint(
            "num_nonnulls(ground, refused_at) = CASE state WHEN 'refused' THEN 2 ELSE 0 END",
            name="ground",
        ),
        sa.CheckConstraint(
            "(salt IS NULL) = (request_digest IS NULL) AND (salt IS NOT NULL OR num_nonnulls("
            "external_key, idempotency_key, explanation, extension_reason) = 0)",
            name="evidence",
        ),
        sa.CheckConstraint("ground IS NOT NULL OR explanation IS NULL", name="explanation"),
        sa.UniqueConstraint("api_key_id", "external_key"),
        sa.UniqueConstraint("api_key_id", "idempotency_key"),
        sa.Index("ix_forget_requests_dataset_id_forget_epoch", "dataset_id", "forget_epoch"),
        sa.Index(
            "ix_forget_requests_open_due_at",
            "due_at",
            postgresql_where="completed_at IS NULL",
        ),
        sa.Index(
            "ix_forget_requests_evidence",
            sa.text("coalesce(completed_at, refused_at)"),
            postgresql_where="salt IS NOT NULL",
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


def create_callbacks() -> None:
    op.create_table(
        "derivatives",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("version_id", sa.String, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("contact", sa.LargeBinary, nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("told_at", MOMENT),
        sa.Column("acknowledged_at", MOMENT),
        sa.Column("answer", sa.String),
        sa.UniqueConstraint("version_id", "name"),
    )
    op.create_table(
        "callback_endpoints",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("api_key_id", sa.String, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("request_id", sa.String, sa.ForeignKey("forget_requests.id"), index=True),
        sa.Column(
            "subject_request_id", sa.String, sa.ForeignKey("subject_requests.id"), index=True
        ),
        sa.Column("derivative_id", sa.String, sa.ForeignKey("derivatives.id"), index=True),
        sa.Column("state", sa.String, server_default="active", nullable=False),
        sa.Column("url", sa.LargeBinary),
        sa.Column("url_digest", sa.LargeBinary),
        sa.Column("emitted", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.CheckConstraint("state IN ('active', 'disabled', 'closed')", name="state"),
        sa.CheckConstraint(
            "num_nonnulls(request_id, subject_request_id, derivative_id) = 1", name="subject"
        ),
        sa.CheckConstraint(
            "(state = 'active') = (url IS NOT NULL) AND (url IS NULL) = (url_digest IS NULL)",
            name="url",
        ),
        sa.Index("ix_callback_endpoints_ended", "ended_at", postgresql_where="state = 'active'"),
    )
    op.create_table(
        "callback_events",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("endpoint_id", sa.String, sa.ForeignKey("callback_endpoints.id"), nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("state", sa.String, server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("next_attempt_at", MOMENT, server_default=CLOCK),
        sa.Column("delivered_at", MOMENT),
        sa.Column("failure", sa.String),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
        sa.CheckConstraint(
            "(state = 'pending') = (next_attempt_at IS NOT NULL)", name="next_attempt"
        ),
        sa.CheckConstraint("sequence >= 1 AND attempts >= 0", name="counts"),
        sa.UniqueConstraint("endpoint_id", "sequence"),
        sa.Index("ix_callback_events_created_at_id", "created_at", "id"),
        sa.Index("ix_callback_events_dead", "created_at", "id", postgresql_where="state = 'dead'"),
        sa.Index(
            "ix_callback_events_delivered", "delivered_at", postgresql_where="state = 'delivered'"
        ),
        sa.Index("ix_callback_events_due", "next_attempt_at", postgresql_where="state = 'pending'"),
    )
    op.create_table(
        "callback_secrets",
        sa.Column("api_key_id", sa.String, sa.ForeignKey("api_keys.id"), primary_key=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("rotated_at", MOMENT, nullable=False),
        sa.CheckConstraint("generation >= 1", name="generation"),
    )


def create_publishing() -> None:
    op.create_table(
        "placements",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("is_wanted", sa.Boolean, nullable=False),
        sa.Column("generation", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("version_id", sa.String, sa.ForeignKey("versions.id")),
        sa.Column("certificate_id", sa.String, sa.ForeignKey("certificates.id")),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("due_at", MOMENT, server_default=CLOCK),
        sa.Column("unsettled_since", MOMENT, server_default=CLOCK),
        sa.Column("checked_at", MOMENT),
        sa.Column("failure", sa.String),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.CheckConstraint("attempts >= 0 AND generation >= 0", name="counts"),
        sa.CheckConstraint("(due_at IS NULL) = (unsettled_since IS NULL)", name="due"),
        sa.UniqueConstraint("model_id", "target"),
        sa.Index("ix_placements_due", "due_at", postgresql_where="due_at IS NOT NULL"),
    )
    op.create_table(
        "copies",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("placement_id", sa.String, sa.ForeignKey("placements.id"), nullable=False),
        sa.Column("version_id", sa.String, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("sent_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("placed_at", MOMENT),
        sa.Column("removed_at", MOMENT),
        sa.Index(
            "uq_copies_present",
            "placement_id",
            "version_id",
            unique=True,
            postgresql_where="removed_at IS NULL",
        ),
    )

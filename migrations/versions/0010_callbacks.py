"""Callbacks: addresses, events and secrets; data subject requests over all datasets.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations.guards import guard

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.create_table(
        "subject_requests",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("api_key_id", sa.String(), nullable=False),
        sa.Column("subject_request_id", sa.String(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("regulation", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=True),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')",
            name=op.f("ck_subject_requests_status"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_subject_requests_api_key_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subject_requests")),
        sa.UniqueConstraint(
            "api_key_id",
            "subject_request_id",
            name=op.f("uq_subject_requests_api_key_id_subject_request_id"),
        ),
    )
    op.add_column(
        "forget_requests",
        sa.Column("callback_count", sa.Integer(), server_default="0", nullable=False),
    )
    op.add_column("forget_requests", sa.Column("subject_request_id", sa.String(), nullable=True))
    guard(
        "subject_requests",
        "o.status IS NOT NULL AND (n.id, n.api_key_id, n.subject_request_id, n.request_digest,"
        " n.regulation, n.submitted_at, n.received_at, n.due_at) IS DISTINCT FROM (o.id,"
        " o.api_key_id, o.subject_request_id, o.request_digest, o.regulation, o.submitted_at,"
        " o.received_at, o.due_at)",
    )
    op.create_foreign_key(
        op.f("fk_forget_requests_subject_request_id"),
        "forget_requests",
        "subject_requests",
        ["subject_request_id"],
        ["id"],
    )
    op.create_index(
        op.f("ix_forget_requests_subject_request_id"), "forget_requests", ["subject_request_id"]
    )
    _endpoints()
    _events()
    op.create_table(
        "callback_secrets",
        sa.Column("api_key_id", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("generation >= 1", name=op.f("ck_callback_secrets_generation")),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_callback_secrets_api_key_id")
        ),
        sa.PrimaryKeyConstraint("api_key_id", name=op.f("pk_callback_secrets")),
    )


def _endpoints() -> None:
    op.create_table(
        "callback_endpoints",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("api_key_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("subject_request_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), server_default="active", nullable=False),
        sa.Column("url", sa.LargeBinary(), nullable=True),
        sa.Column("url_digest", sa.LargeBinary(), nullable=True),
        sa.Column("emitted", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('active', 'disabled', 'closed')", name=op.f("ck_callback_endpoints_state")
        ),
        sa.CheckConstraint(
            "num_nonnulls(request_id, subject_request_id) = 1",
            name=op.f("ck_callback_endpoints_subject"),
        ),
        sa.CheckConstraint(
            "(state = 'active') = (url IS NOT NULL) AND (url IS NULL) = (url_digest IS NULL)",
            name=op.f("ck_callback_endpoints_url"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_callback_endpoints_api_key_id")
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name=op.f("fk_callback_endpoints_request_id")
        ),
        sa.ForeignKeyConstraint(
            ["subject_request_id"],
            ["subject_requests.id"],
            name=op.f("fk_callback_endpoints_subject_request_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_callback_endpoints")),
    )
    for column in ("request_id", "subject_request_id"):
        op.create_index(op.f(f"ix_callback_endpoints_{column}"), "callback_endpoints", [column])
    op.create_index(
        "ix_callback_endpoints_ended",
        "callback_endpoints",
        ["ended_at"],
        postgresql_where="state = 'active'",
    )


def _events() -> None:
    op.create_table(
        "callback_events",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.String(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column(
            "next_attempt_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=True
        ),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'dead')", name=op.f("ck_callback_events_state")
        ),
        sa.CheckConstraint(
            "(state = 'pending') = (next_attempt_at IS NOT NULL)",
            name=op.f("ck_callback_events_next_attempt"),
        ),
        sa.CheckConstraint(
            "sequence >= 1 AND attempts >= 0", name=op.f("ck_callback_events_counts")
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["callback_endpoints.id"], name=op.f("fk_callback_events_endpoint_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_callback_events")),
        sa.UniqueConstraint(
            "endpoint_id", "sequence", name=op.f("uq_callback_events_endpoint_id_sequence")
        ),
    )
    op.create_index(
        "ix_callback_events_due",
        "callback_events",
        ["next_attempt_at"],
        postgresql_where="state = 'pending'",
    )
    op.create_index(
        "ix_callback_events_dead",
        "callback_events",
        ["created_at", "id"],
        postgresql_where="state = 'dead'",
    )
    op.create_index("ix_callback_events_created_at_id", "callback_events", ["created_at", "id"])


def downgrade() -> None:
    for table in ("callback_secrets", "callback_events", "callback_endpoints"):
        op.drop_table(table)
    op.drop_index(op.f("ix_forget_requests_subject_request_id"), table_name="forget_requests")
    op.drop_constraint(op.f("fk_forget_requests_subject_request_id"), "forget_requests")
    op.drop_column("forget_requests", "subject_request_id")
    op.drop_column("forget_requests", "callback_count")
    op.drop_table("subject_requests")

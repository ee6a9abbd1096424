"""Addresses that callers gave, what they are told, and the secrets that sign it."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import CLOCK, JSONB, MOMENT


def create() -> None:
    create_callback_endpoints()
    create_callback_events()
    create_callback_secrets()


def create_callback_endpoints() -> None:
    op.create_table(
        "callback_endpoints",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("api_key_id", sa.String, nullable=False),
        sa.Column("request_id", sa.String),
        sa.Column("subject_request_id", sa.String),
        sa.Column("state", sa.String, server_default="active", nullable=False),
        sa.Column("url", sa.LargeBinary),
        sa.Column("url_digest", sa.LargeBinary),
        sa.Column("emitted", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.CheckConstraint(
            "(state = 'active') = (url IS NOT NULL) AND (url IS NULL) = (url_digest IS NULL)",
            name=op.f("ck_callback_endpoints_url"),
        ),
        sa.CheckConstraint(
            "state IN ('active', 'disabled', 'closed')", name=op.f("ck_callback_endpoints_state")
        ),
        sa.CheckConstraint(
            "num_nonnulls(request_id, subject_request_id) = 1",
            name=op.f("ck_callback_endpoints_subject"),
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name="fk_callback_endpoints_api_key_id"
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["forget_requests.id"], name="fk_callback_endpoints_request_id"
        ),
        sa.ForeignKeyConstraint(
            ["subject_request_id"],
            ["subject_requests.id"],
            name="fk_callback_endpoints_subject_request_id",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_callback_endpoints"),
    )
    op.create_index(
        "ix_callback_endpoints_ended",
        "callback_endpoints",
        ["ended_at"],
        postgresql_where="state = 'active'",
    )
    op.create_index("ix_callback_endpoints_request_id", "callback_endpoints", ["request_id"])
    op.create_index(
        "ix_callback_endpoints_subject_request_id", "callback_endpoints", ["subject_request_id"]
    )


def create_callback_events() -> None:
    op.create_table(
        "callback_events",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("endpoint_id", sa.String, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("state", sa.String, server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("next_attempt_at", MOMENT, server_default=CLOCK),
        sa.Column("delivered_at", MOMENT),
        sa.Column("failure", sa.String),
        sa.CheckConstraint(
            "(state = 'pending') = (next_attempt_at IS NOT NULL)",
            name=op.f("ck_callback_events_next_attempt"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'dead')", name=op.f("ck_callback_events_state")
        ),
        sa.CheckConstraint(
            "sequence >= 1 AND attempts >= 0", name=op.f("ck_callback_events_counts")
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["callback_endpoints.id"], name="fk_callback_events_endpoint_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_callback_events"),
        sa.UniqueConstraint(
            "endpoint_id", "sequence", name="uq_callback_events_endpoint_id_sequence"
        ),
    )
    op.create_index("ix_callback_events_created_at_id", "callback_events", ["created_at", "id"])
    op.create_index(
        "ix_callback_events_dead",
        "callback_events",
        ["created_at", "id"],
        postgresql_where="state = 'dead'",
    )
    op.create_index(
        "ix_callback_events_delivered",
        "callback_events",
        ["delivered_at"],
        postgresql_where="state = 'delivered'",
    )
    op.create_index(
        "ix_callback_events_due",
        "callback_events",
        ["next_attempt_at"],
        postgresql_where="state = 'pending'",
    )


def create_callback_secrets() -> None:
    op.create_table(
        "callback_secrets",
        sa.Column("api_key_id", sa.String, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("rotated_at", MOMENT, nullable=False),
        sa.CheckConstraint("generation >= 1", name=op.f("ck_callback_secrets_generation")),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name="fk_callback_secrets_api_key_id"
        ),
        sa.PrimaryKeyConstraint("api_key_id", name="pk_callback_secrets"),
    )

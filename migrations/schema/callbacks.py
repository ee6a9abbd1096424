"""Addresses that callers gave, what they are told, and the secrets that sign it."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import CLOCK, JSONB, MOMENT


def create() -> None:
    op.create_table(
        "callback_endpoints",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("api_key_id", sa.String, sa.ForeignKey("api_keys.id"), nullable=False),
        sa.Column("request_id", sa.String, sa.ForeignKey("forget_requests.id"), index=True),
        sa.Column(
            "subject_request_id", sa.String, sa.ForeignKey("subject_requests.id"), index=True
        ),
        sa.Column("state", sa.String, server_default="active", nullable=False),
        sa.Column("url", sa.LargeBinary),
        sa.Column("url_digest", sa.LargeBinary),
        sa.Column("emitted", sa.Integer, server_default="0", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.CheckConstraint("state IN ('active', 'disabled', 'closed')", name="state"),
        sa.CheckConstraint("num_nonnulls(request_id, subject_request_id) = 1", name="subject"),
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

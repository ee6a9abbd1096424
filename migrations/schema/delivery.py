"""Callbacks, and the places where versions are published."""

import sqlalchemy as sa
from alembic import op

from migrations.schema import CLOCK, JSONB, MOMENT


def create_callbacks() -> None:
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

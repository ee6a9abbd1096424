"""Calls made under an Idempotency-Key, and their answers: both unreadable without the caller's key.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_idempotency_keys_attempt")),
        sa.CheckConstraint(
            "length(key_digest) = 32 AND length(request_digest) = 32",
            name=op.f("ck_idempotency_keys_digests"),
        ),
        sa.PrimaryKeyConstraint("key_digest", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_expires_at", "idempotency_keys", ["expires_at"])
    op.create_index("ix_runs_created_at_id", "runs", ["created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_runs_created_at_id", table_name="runs")
    op.drop_index("ix_idempotency_keys_expires_at", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")

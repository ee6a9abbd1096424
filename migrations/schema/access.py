"""Callers, and the answers that are kept for calls that come again."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import JSONB, MOMENT, NOW


def create() -> None:
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

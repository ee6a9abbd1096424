"""Callers: keys that expire, callers known by tokens, when each was last seen, and what each did.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("kind", sa.String(), server_default="key", nullable=False))
    op.create_check_constraint(op.f("ck_api_keys_kind"), "api_keys", "kind IN ('key', 'oidc')")
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("api_keys", sa.Column("last_used_at", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_log_entries_by",
        "log_entries",
        [sa.text("""substring(body, '"by":"([^"]*)"'::text)"""), "index"],
    )


def downgrade() -> None:
    op.drop_index("ix_log_entries_by", table_name="log_entries")
    op.drop_column("api_keys", "last_used_at")
    op.drop_column("api_keys", "expires_at")
    # A caller without a key cannot be told from one with a key any more, so none is left to use.
    op.execute("UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE kind = 'oidc'")
    op.drop_constraint(op.f("ck_api_keys_kind"), "api_keys")
    op.drop_column("api_keys", "kind")

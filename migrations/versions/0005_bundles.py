"""Signing keys and when they were in use; certificates are found in the log by an index.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

from migrations.guards import guard

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("pem", sa.String(), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("compromised_since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_index(
        "uq_signing_keys_one_in_use",
        "signing_keys",
        [sa.text("(valid_until IS NULL)")],
        unique=True,
        postgresql_where=sa.text("valid_until IS NULL"),
    )
    guard(
        "signing_keys",
        "n.id <> o.id OR n.pem <> o.pem OR n.valid_from IS DISTINCT FROM o.valid_from"
        " OR o.valid_until IS NOT NULL AND (n.valid_until, n.compromised_since)"
        " IS DISTINCT FROM (o.valid_until, o.compromised_since)",
    )
    op.create_index(
        "ix_log_entries_certificate",
        "log_entries",
        [sa.text("""substring(body, '"certificate":"([^"]*)"'::text)""")],
        postgresql_where=sa.text("kind = 'certificate.issued'"),
    )
    op.create_index(
        "ix_log_entries_retirements",
        "log_entries",
        ["index"],
        postgresql_where=sa.text("kind = 'key.retired'"),
    )


def downgrade() -> None:
    op.drop_index("ix_log_entries_retirements", table_name="log_entries")
    op.drop_index("ix_log_entries_certificate", table_name="log_entries")
    op.drop_table("signing_keys")

"""When a request was warned of: before its deadline, and when it was overdue.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("due_soon_noted_at", "overdue_noted_at"):
        op.add_column("forget_requests", sa.Column(column, sa.DateTime(timezone=True)))
    op.create_index(
        "ix_forget_requests_open_due_at",
        "forget_requests",
        ["due_at"],
        postgresql_where="state NOT IN ('completed', 'cancelled')",
    )


def downgrade() -> None:
    op.drop_index("ix_forget_requests_open_due_at", table_name="forget_requests")
    for column in ("overdue_noted_at", "due_soon_noted_at"):
        op.drop_column("forget_requests", column)

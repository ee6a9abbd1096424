"""An index by which delivered callbacks are found once they are old.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_callback_events_delivered",
        "callback_events",
        ["delivered_at"],
        postgresql_where="state = 'delivered'",
    )


def downgrade() -> None:
    op.drop_index("ix_callback_events_delivered", table_name="callback_events")

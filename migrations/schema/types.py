"""Types and defaults that many columns share."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSONB = postgresql.JSONB()
MOMENT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
CLOCK = sa.text("clock_timestamp()")


def unique_name(table: str) -> None:
    """Keep names unique among what was not deleted."""
    op.create_index(
        f"uq_{table}_name", table, ["name"], unique=True, postgresql_where="deleted_at IS NULL"
    )

"""The first schema, and the types and defaults that many columns share.

Constraints get the names that the convention of ``app/runtime/database/engine.py`` gives the
tables'.
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

JSONB = postgresql.JSONB()
MOMENT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
CLOCK = sa.text("clock_timestamp()")


def unique_name(table: str) -> sa.Index:
    """Return the index that keeps names unique among what was not deleted."""
    return sa.Index(f"uq_{table}_name", "name", unique=True, postgresql_where="deleted_at IS NULL")

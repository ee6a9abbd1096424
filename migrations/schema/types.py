"""Types and defaults that many columns share."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

JSONB = postgresql.JSONB()
MOMENT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
CLOCK = sa.text("clock_timestamp()")

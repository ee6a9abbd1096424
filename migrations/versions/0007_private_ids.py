"""Callers' own ids of requests become keyed hashes; a row of the outbox knows when it was posted.

The key lies outside the database, so ids from before are dropped: such a request is found by its
own id alone. The change of type writes the table anew, which leaves no old row in its files.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

from migrations.guards import guard

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for column in ("external_id", "idempotency_key"):
        op.alter_column(
            "forget_requests", column, type_=sa.LargeBinary(), postgresql_using="NULL::bytea"
        )
    op.alter_column("forget_requests", "external_id", new_column_name="external_key")
    _rename_constraint("external_id", "external_key")
    # By these a call is recognised as repeated, and answered as the first was.
    names = ("external_key", "idempotency_key", "request_digest")
    changed = " OR ".join(f"n.{name} IS DISTINCT FROM o.{name}" for name in names)
    guard("forget_requests", changed, name="recognition")
    op.add_column(
        "outbox",
        sa.Column(
            "posted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    op.drop_column("outbox", "posted_at")
    op.execute("DROP TRIGGER recognition ON forget_requests")
    _rename_constraint("external_key", "external_id")
    op.alter_column("forget_requests", "external_key", new_column_name="external_id")
    for column in ("external_id", "idempotency_key"):
        op.alter_column("forget_requests", column, type_=sa.String(), postgresql_using="NULL::text")


def _rename_constraint(old: str, new: str) -> None:
    name = "uq_forget_requests_api_key_id_"
    op.execute(f"ALTER TABLE forget_requests RENAME CONSTRAINT {name}{old} TO {name}{new}")

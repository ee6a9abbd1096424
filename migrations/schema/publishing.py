"""Where versions are published, and which were sent there."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import CLOCK, MOMENT


def create() -> None:
    op.create_table(
        "placements",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("model_id", sa.String, sa.ForeignKey("models.id"), nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("is_wanted", sa.Boolean, nullable=False),
        sa.Column("generation", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("version_id", sa.String, sa.ForeignKey("versions.id")),
        sa.Column("certificate_id", sa.String, sa.ForeignKey("certificates.id")),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("due_at", MOMENT, server_default=CLOCK),
        sa.Column("unsettled_since", MOMENT, server_default=CLOCK),
        sa.Column("checked_at", MOMENT),
        sa.Column("failure", sa.String),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.CheckConstraint("attempts >= 0 AND generation >= 0", name="counts"),
        sa.CheckConstraint("(due_at IS NULL) = (unsettled_since IS NULL)", name="due"),
        sa.UniqueConstraint("model_id", "target"),
        sa.Index("ix_placements_due", "due_at", postgresql_where="due_at IS NOT NULL"),
    )
    op.create_table(
        "copies",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("placement_id", sa.String, sa.ForeignKey("placements.id"), nullable=False),
        sa.Column("version_id", sa.String, sa.ForeignKey("versions.id"), nullable=False),
        sa.Column("sent_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("placed_at", MOMENT),
        sa.Column("removed_at", MOMENT),
        sa.Index(
            "uq_copies_present",
            "placement_id",
            "version_id",
            unique=True,
            postgresql_where="removed_at IS NULL",
        ),
    )

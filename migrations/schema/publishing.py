"""Where versions are published, and which were sent there."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import CLOCK, MOMENT


def create() -> None:
    create_placements()
    create_copies()


def create_placements() -> None:
    op.create_table(
        "placements",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("model_id", sa.String, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("is_wanted", sa.Boolean, nullable=False),
        sa.Column("generation", sa.BigInteger, server_default="0", nullable=False),
        sa.Column("version_id", sa.String),
        sa.Column("certificate_id", sa.String),
        sa.Column("attempts", sa.Integer, server_default="0", nullable=False),
        sa.Column("due_at", MOMENT, server_default=CLOCK),
        sa.Column("unsettled_since", MOMENT, server_default=CLOCK),
        sa.Column("checked_at", MOMENT),
        sa.Column("failure", sa.String),
        sa.Column("created_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.CheckConstraint("attempts >= 0 AND generation >= 0", name=op.f("ck_placements_counts")),
        sa.CheckConstraint(
            "(due_at IS NULL) = (unsettled_since IS NULL)", name=op.f("ck_placements_due")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_placements_model_id"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_placements_version_id"),
        sa.ForeignKeyConstraint(
            ["certificate_id"], ["certificates.id"], name="fk_placements_certificate_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_placements"),
        sa.UniqueConstraint("model_id", "target", name="uq_placements_model_id_target"),
    )
    op.create_index(
        "ix_placements_due", "placements", ["due_at"], postgresql_where="due_at IS NOT NULL"
    )


def create_copies() -> None:
    op.create_table(
        "copies",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("placement_id", sa.String, nullable=False),
        sa.Column("version_id", sa.String, nullable=False),
        sa.Column("sent_at", MOMENT, server_default=CLOCK, nullable=False),
        sa.Column("placed_at", MOMENT),
        sa.Column("removed_at", MOMENT),
        sa.ForeignKeyConstraint(["placement_id"], ["placements.id"], name="fk_copies_placement_id"),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name="fk_copies_version_id"),
        sa.PrimaryKeyConstraint("id", name="pk_copies"),
    )
    op.create_index(
        "uq_copies_present",
        "copies",
        ["placement_id", "version_id"],
        unique=True,
        postgresql_where="removed_at IS NULL",
    )

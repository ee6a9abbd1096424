"""Public backbones, and the features that they make of shards.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "backbones",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("architecture", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("input_shape", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("classes", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("blob_id", sa.String(), nullable=True),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("classes >= 2", name=op.f("ck_backbones_classes")),
        sa.CheckConstraint(
            "(blob_id IS NULL) = (sha256 IS NULL) AND (blob_id IS NULL) = (size_bytes IS NULL)",
            name=op.f("ck_backbones_weights"),
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_backbones_blob_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backbones")),
        sa.UniqueConstraint("name", name=op.f("uq_backbones_name")),
    )
    op.create_table(
        "feature_shards",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("shard_id", sa.String(), nullable=False),
        sa.Column("backbone_id", sa.String(), nullable=False),
        sa.Column("blob_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["backbone_id"], ["backbones.id"], name=op.f("fk_feature_shards_backbone_id")
        ),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_feature_shards_blob_id")),
        sa.ForeignKeyConstraint(
            ["shard_id"], ["shards.id"], name=op.f("fk_feature_shards_shard_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feature_shards")),
        sa.UniqueConstraint(
            "shard_id", "backbone_id", name=op.f("uq_feature_shards_shard_id_backbone_id")
        ),
    )
    op.create_index(
        op.f("ix_feature_shards_backbone_id"), "feature_shards", ["backbone_id"], unique=False
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_feature_shards_backbone_id"), table_name="feature_shards")
    op.drop_table("feature_shards")
    op.drop_table("backbones")

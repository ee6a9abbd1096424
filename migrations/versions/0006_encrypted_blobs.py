"""When an object was deleted: apart from the destruction of its key, which shreds the blob.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blobs", sa.Column("object_deleted_at", sa.DateTime(timezone=True)))
    op.execute("UPDATE blobs SET object_deleted_at = shredded_at WHERE state = 'shredded'")
    op.create_check_constraint(
        op.f("ck_blobs_object_deleted"),
        "blobs",
        "object_deleted_at IS NULL OR state = 'shredded'",
    )
    op.create_index(
        "ix_blobs_objects_left",
        "blobs",
        ["id"],
        postgresql_where="state = 'shredded' AND object_deleted_at IS NULL",
    )


def downgrade() -> None:
    op.drop_index("ix_blobs_objects_left", table_name="blobs")
    op.drop_constraint(op.f("ck_blobs_object_deleted"), "blobs")
    op.drop_column("blobs", "object_deleted_at")

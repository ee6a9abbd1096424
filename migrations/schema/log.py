"""The log: a Merkle tree of entries, its signed sizes, and the keys that signed them."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import MOMENT


def create() -> None:
    op.create_table(
        "log_entries",
        sa.Column("index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("body", sa.String, nullable=False),
        sa.Index(
            "ix_log_entries_by", sa.text('substring(body, \'"by":"([^"]*)"\'::text)'), "index"
        ),
        sa.Index(
            "ix_log_entries_certificate",
            sa.text('substring(body, \'"certificate":"([^"]*)"\'::text)'),
            postgresql_where="kind = 'certificate.issued'",
        ),
        sa.Index("ix_log_entries_retirements", "index", postgresql_where="kind = 'key.retired'"),
    )
    op.create_table(
        "tree_nodes",
        sa.Column("tree", sa.String, primary_key=True),
        sa.Column("level", sa.SmallInteger, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("level BETWEEN 0 AND 62", name="level"),
        sa.CheckConstraint("position >= 0", name="position"),
        sa.CheckConstraint("length(hash) = 32", name="hash"),
    )
    op.create_table(
        "log_checkpoints",
        sa.Column("size", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.CheckConstraint("size >= 1", name="size"),
        sa.CheckConstraint("length(root) = 32", name="root"),
    )
    op.create_table(
        "log_cosignatures",
        sa.Column("size", sa.BigInteger, primary_key=True),
        sa.Column("witness", sa.String, primary_key=True),
        sa.Column("line", sa.String, nullable=False),
    )
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("pem", sa.String, nullable=False),
        sa.Column("valid_from", MOMENT),
        sa.Column("valid_until", MOMENT),
        sa.Column("compromised_since", MOMENT),
        sa.Index(
            "uq_signing_keys_one_in_use",
            sa.text("(valid_until IS NULL)"),
            unique=True,
            postgresql_where="valid_until IS NULL",
        ),
    )

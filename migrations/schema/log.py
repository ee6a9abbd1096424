"""The log: a Merkle tree of entries, its signed sizes, and the keys that signed them."""

import sqlalchemy as sa
from alembic import op

from migrations.schema.types import MOMENT


def create() -> None:
    create_log_entries()
    create_tree_nodes()
    create_log_checkpoints()
    create_log_cosignatures()
    create_signing_keys()


def create_log_entries() -> None:
    op.create_table(
        "log_entries",
        sa.Column("index", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("body", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("index", name="pk_log_entries"),
    )
    op.create_index(
        "ix_log_entries_by",
        "log_entries",
        [sa.text("""substring(body, '"by":"([^"]*)"'::text)"""), "index"],
    )
    op.create_index(
        "ix_log_entries_certificate",
        "log_entries",
        [sa.text("""substring(body, '"certificate":"([^"]*)"'::text)""")],
        postgresql_where="kind = 'certificate.issued'",
    )
    op.create_index(
        "ix_log_entries_retirements",
        "log_entries",
        ["index"],
        postgresql_where="kind = 'key.retired'",
    )


def create_tree_nodes() -> None:
    op.create_table(
        "tree_nodes",
        sa.Column("tree", sa.String, nullable=False),
        sa.Column("level", sa.SmallInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("length(hash) = 32", name=op.f("ck_tree_nodes_hash")),
        sa.CheckConstraint("level BETWEEN 0 AND 62", name=op.f("ck_tree_nodes_level")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_tree_nodes_position")),
        sa.PrimaryKeyConstraint("tree", "level", "position", name="pk_tree_nodes"),
    )


def create_log_checkpoints() -> None:
    op.create_table(
        "log_checkpoints",
        sa.Column("size", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.CheckConstraint("length(root) = 32", name=op.f("ck_log_checkpoints_root")),
        sa.CheckConstraint("size >= 1", name=op.f("ck_log_checkpoints_size")),
        sa.PrimaryKeyConstraint("size", name="pk_log_checkpoints"),
    )


def create_log_cosignatures() -> None:
    op.create_table(
        "log_cosignatures",
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("witness", sa.String, nullable=False),
        sa.Column("line", sa.String, nullable=False),
        sa.PrimaryKeyConstraint("size", "witness", name="pk_log_cosignatures"),
    )


def create_signing_keys() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.String, nullable=False),
        sa.Column("pem", sa.String, nullable=False),
        sa.Column("valid_from", MOMENT),
        sa.Column("valid_until", MOMENT),
        sa.Column("compromised_since", MOMENT),
        sa.PrimaryKeyConstraint("id", name="pk_signing_keys"),
    )
    op.create_index(
        "uq_signing_keys_one_in_use",
        "signing_keys",
        [sa.text("(valid_until IS NULL)")],
        unique=True,
        postgresql_where="valid_until IS NULL",
    )

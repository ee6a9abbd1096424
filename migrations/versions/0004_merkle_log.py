"""The log becomes a Merkle tree, signed and append-only; what the ledger settles stays settled.

Entries count from 0 and say themselves when they were recorded, so that the tree covers it.

Revision ID: 0004
Revises: 0003
"""

import json
from datetime import UTC

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BATCH = 1000


def upgrade() -> None:
    _move_times_into_bodies()
    _shift(-1)
    op.create_table(
        "log_nodes",
        sa.Column("level", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("level BETWEEN 1 AND 62", name=op.f("ck_log_nodes_level")),
        sa.CheckConstraint("position >= 0", name=op.f("ck_log_nodes_position")),
        sa.CheckConstraint("length(hash) = 32", name=op.f("ck_log_nodes_hash")),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_log_nodes")),
    )
    op.create_table(
        "log_checkpoints",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column(
            "issued_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("size >= 1", name=op.f("ck_log_checkpoints_size")),
        sa.CheckConstraint("length(root) = 32", name=op.f("ck_log_checkpoints_root")),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_log_checkpoints")),
    )
    op.create_table(
        "log_cosignatures",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("witness", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("size", "witness", name=op.f("pk_log_cosignatures")),
    )
    _build_tree()
    guards.make_append_only()
    guards.guard_ledger()


def downgrade() -> None:
    guards.drop()
    op.drop_table("log_cosignatures")
    op.drop_table("log_checkpoints")
    op.drop_table("log_nodes")
    _shift(+1)
    op.add_column(
        "log_entries",
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
    )
    op.execute("UPDATE log_entries SET recorded_at = (body::jsonb ->> 'recorded_at')::timestamptz")


def _move_times_into_bodies() -> None:
    connection = op.get_bind()
    reading = sa.text(
        "SELECT index, body, recorded_at FROM log_entries WHERE index > :after"
        " ORDER BY index LIMIT :batch"
    )
    writing = sa.text("UPDATE log_entries SET body = :body WHERE index = :index")
    after = 0
    while rows := connection.execute(reading, {"after": after, "batch": BATCH}).all():
        bodies = [{"index": index, "body": _with_time(*row)} for index, *row in rows]
        connection.execute(writing, bodies)
        after = rows[-1][0]
    op.drop_column("log_entries", "recorded_at")


def _with_time(body, recorded_at) -> str:
    moment = recorded_at.astimezone(UTC).isoformat(timespec="microseconds")
    entry = {**json.loads(body), "recorded_at": moment}
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def _shift(by: int) -> None:
    """Renumber in two steps, because no two rows may share an index on the way."""
    op.execute("UPDATE log_entries SET index = -index - 1")
    op.execute(sa.text("UPDATE log_entries SET index = -index - 1 + :by").bindparams(by=by))


def _build_tree() -> None:
    """Insert the roots of all complete subtrees, level by level (RFC 6962, section 2.1)."""
    op.execute(
        r"""
        DO $$
        DECLARE upper smallint := 1;
        BEGIN
            INSERT INTO log_nodes
            SELECT 1, l.index / 2, sha256('\x01'::bytea
                || sha256('\x00'::bytea || convert_to(l.body, 'UTF8'))
                || sha256('\x00'::bytea || convert_to(r.body, 'UTF8')))
            FROM log_entries l JOIN log_entries r ON r.index = l.index + 1
            WHERE l.index % 2 = 0;
            WHILE FOUND LOOP
                upper := upper + 1;
                INSERT INTO log_nodes
                SELECT upper, l.position / 2, sha256('\x01'::bytea || l.hash || r.hash)
                FROM log_nodes l
                JOIN log_nodes r ON r.level = l.level AND r.position = l.position + 1
                WHERE l.level = upper - 1 AND l.position % 2 = 0;
            END LOOP;
        END $$
        """
    )

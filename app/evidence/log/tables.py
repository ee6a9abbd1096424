"""The log's tables: entries, trees, checkpoints, cosignatures and signing keys."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, SmallInteger, text
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged


class LogEntryRow(Base):
    """One decision as canonical JSON: the leaf ``index`` of the log's tree, counted from 0.

    ``kind`` repeats the body's kind.
    """

    __tablename__ = "log_entries"
    __table_args__ = (
        Index(
            "ix_log_entries_certificate",
            text("""substring(body, '"certificate":"([^"]*)"'::text)"""),
            postgresql_where="kind = 'certificate.issued'",
        ),
        Index("ix_log_entries_retirements", "index", postgresql_where="kind = 'key.retired'"),
        Index(
            "ix_log_entries_origins",
            "index",
            postgresql_where="kind IN ('dataset.destroyed', 'weights.imported')",
        ),
        Index("ix_log_entries_by", text("""substring(body, '"by":"([^"]*)"'::text)"""), "index"),
    )

    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    kind: Mapped[str]
    body: Mapped[str]


class TreeNodeRow(Base):
    """The root of a complete subtree of 2^level leaves: see ``app/evidence/log/trees.py``."""

    __tablename__ = "tree_nodes"
    __table_args__ = (
        CheckConstraint("level BETWEEN 0 AND 62", name="level"),
        CheckConstraint("position >= 0", name="position"),
        CheckConstraint("length(hash) = 32", name="hash"),
    )

    tree: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[bytes]


class LogCheckpointRow(Base):
    """What the service has signed about the log: its first ``size`` entries have this root.

    It was signed when the last of them was recorded.
    """

    __tablename__ = "log_checkpoints"
    __table_args__ = (
        CheckConstraint("size >= 1", name="size"),
        CheckConstraint("length(root) = 32", name="root"),
    )

    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    root: Mapped[bytes]
    note: Mapped[str]


class LogCosignatureRow(Base):
    """A witness's signature of a checkpoint: one more line of its note.

    ``witness`` is the witness's verifier key. There is no foreign key, so cosignatures outlive
    changes to their checkpoint.
    """

    __tablename__ = "log_cosignatures"

    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    witness: Mapped[str] = mapped_column(primary_key=True)
    line: Mapped[str]


class SigningKeyRow(Logged, Base):
    """A public key that signs or has signed; ``valid_until`` is null for the key in use."""

    __tablename__ = "signing_keys"
    __table_args__ = (
        Index(
            "uq_signing_keys_one_in_use",
            text("(valid_until IS NULL)"),
            unique=True,
            postgresql_where="valid_until IS NULL",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    pem: Mapped[str]
    valid_from: Mapped[datetime | None]
    valid_until: Mapped[datetime | None]
    compromised_since: Mapped[datetime | None]
    """Since when the private key may have been in other hands."""

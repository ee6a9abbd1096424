"""Forget requests, obligations, runs, outbox, log and API keys."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    SmallInteger,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.database import Base


class ApiKeyRow(Base):
    """A caller: one with a key, or one whose tokens an issuer signs.

    Only a hash of the key is stored, or a keyed hash of the token's issuer and subject. What a
    token allows is in the token, so ``scopes`` is empty then.
    """

    __tablename__ = "api_keys"
    __table_args__ = (CheckConstraint("kind IN ('key', 'oidc')", name="kind"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(server_default="key")
    name: Mapped[str]
    key_hash: Mapped[bytes] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class SubjectRequestRow(Base):
    """A controller's demand for one person, over all datasets; see OpenDSR 2.0."""

    __tablename__ = "subject_requests"
    __table_args__ = (
        UniqueConstraint("api_key_id", "subject_request_id"),
        CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="status"
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    subject_request_id: Mapped[str]
    request_digest: Mapped[bytes]
    regulation: Mapped[str]
    status: Mapped[str | None]
    """None only within the transaction that creates the row."""
    submitted_at: Mapped[datetime]
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]


class ForgetRequestRow(Base):
    """The demand that some records or subjects be forgotten."""

    __tablename__ = "forget_requests"
    __table_args__ = (
        UniqueConstraint("api_key_id", "external_key"),
        UniqueConstraint("api_key_id", "idempotency_key"),
        CheckConstraint(
            "state IN ('accepted', 'unlearning', 'certified', 'completed', 'failed', 'cancelled')",
            name="state",
        ),
        Index("ix_forget_requests_received_at_id", "received_at", "id"),
        Index(
            "ix_forget_requests_open_due_at",
            "due_at",
            postgresql_where="state NOT IN ('completed', 'cancelled')",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"), index=True)
    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    external_key: Mapped[bytes | None]
    """Keyed hash of the caller's own id of the request, which may name a person."""
    idempotency_key: Mapped[bytes | None]
    """Keyed hash, for the same reason."""
    request_digest: Mapped[bytes]
    state: Mapped[str] = mapped_column(index=True)
    forget_epoch: Mapped[int] = mapped_column(BigInteger)
    record_count: Mapped[int]
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]
    due_soon_noted_at: Mapped[datetime | None]
    overdue_noted_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failure_reason: Mapped[str | None]
    callback_count: Mapped[int] = mapped_column(server_default="0")
    subject_request_id: Mapped[str | None] = mapped_column(
        ForeignKey("subject_requests.id"), index=True
    )


class ForgottenRecordRow(Base):
    """A record named by a request, with its salted commitment."""

    __tablename__ = "forget_request_records"

    request_id: Mapped[str] = mapped_column(ForeignKey("forget_requests.id"), primary_key=True)
    record_seq: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("records.seq"), primary_key=True, index=True
    )
    commitment: Mapped[bytes]


class RunRow(Base):
    """One piece of worker work on one model."""

    __tablename__ = "runs"
    __table_args__ = (
        CheckConstraint("kind IN ('train', 'certify', 'unlearn')", name="kind"),
        CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'published', 'failed', 'cancelled')",
            name="state",
        ),
        CheckConstraint("epsilon IS NULL OR epsilon >= 0", name="epsilon"),
        Index(
            "uq_runs_one_active",
            "model_id",
            unique=True,
            postgresql_where="state IN ('queued', 'leased', 'running')",
        ),
        Index("ix_runs_created_at_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), index=True)
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    plan: Mapped[dict[str, Any]]
    attempt: Mapped[int] = mapped_column(server_default="0")
    fencing_token: Mapped[int] = mapped_column(BigInteger, server_default="0")
    lease_expires_at: Mapped[datetime | None]
    enqueued_at: Mapped[datetime | None]
    forget_epoch: Mapped[int | None] = mapped_column(BigInteger)
    """Everything forgotten up to this epoch is left out and covered; fixed when data is read."""
    phase: Mapped[str | None]
    step: Mapped[int | None]
    total_steps: Mapped[int | None]
    epsilon: Mapped[float | None]
    loss: Mapped[float | None]
    failure_reason: Mapped[str | None]
    phase_seconds: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class ObligationRow(Base):
    """What one request is owed by one model."""

    __tablename__ = "obligations"
    __table_args__ = (
        UniqueConstraint("request_id", "model_id"),
        CheckConstraint(
            "state IN ('open', 'running', 'certified', 'failed', 'cancelled')", name="state"
        ),
        CheckConstraint("(state = 'certified') = (certificate_id IS NOT NULL)", name="certificate"),
        Index("ix_obligations_model_id_state", "model_id", "state"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(ForeignKey("forget_requests.id"))
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"), index=True)
    certificate_id: Mapped[str | None] = mapped_column(ForeignKey("certificates.id"))
    state: Mapped[str]
    basis: Mapped[str]
    failure_reason: Mapped[str | None]


class OutboxRow(Base):
    """Something that must happen after the transaction that wrote it: at least once."""

    __tablename__ = "outbox"
    __table_args__ = (
        CheckConstraint("topic IN ('schedule_model', 'enqueue_run')", name="topic"),
        Index("ix_outbox_available_at", "available_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    topic: Mapped[str]
    subject_id: Mapped[str]
    posted_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    available_at: Mapped[datetime]


class IdempotencyKeyRow(Base):
    """A call made under an ``Idempotency-Key``, and its answer once there is one.

    The key is stored as a keyed hash, the answer encrypted under a key derived from the caller's
    (see ``app/ledger/idempotency.py``).
    """

    __tablename__ = "idempotency_keys"
    __table_args__ = (
        CheckConstraint("attempt >= 0", name="attempt"),
        CheckConstraint("length(key_digest) = 32 AND length(request_digest) = 32", name="digests"),
        Index("ix_idempotency_keys_expires_at", "expires_at"),
    )

    key_digest: Mapped[bytes] = mapped_column(primary_key=True)
    request_digest: Mapped[bytes]
    call_id: Mapped[str]
    """Random; the same for every attempt at this call."""
    attempt: Mapped[int]
    claimed_until: Mapped[datetime]
    """Until then an attempt without an answer counts as in progress."""
    answer: Mapped[bytes | None]
    expires_at: Mapped[datetime]


class LogEntryRow(Base):
    """One decision, in canonical JSON: the leaf ``index`` of the log's tree, counted from 0.

    ``kind`` repeats what the body says.
    """

    __tablename__ = "log_entries"
    __table_args__ = (
        Index(
            "ix_log_entries_certificate",
            text("""substring(body, '"certificate":"([^"]*)"'::text)"""),
            postgresql_where="kind = 'certificate.issued'",
        ),
        Index("ix_log_entries_retirements", "index", postgresql_where="kind = 'key.retired'"),
        Index("ix_log_entries_by", text("""substring(body, '"by":"([^"]*)"'::text)"""), "index"),
    )

    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    kind: Mapped[str]
    body: Mapped[str]


class LogNodeRow(Base):
    """The root of a complete subtree of 2^level leaves; leaves themselves are not repeated."""

    __tablename__ = "log_nodes"
    __table_args__ = (
        CheckConstraint("level BETWEEN 1 AND 62", name="level"),
        CheckConstraint("position >= 0", name="position"),
        CheckConstraint("length(hash) = 32", name="hash"),
    )

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
    """What a witness has signed about a checkpoint: one more line of its note.

    ``witness`` is the witness's verifier key. There is no foreign key: whatever is done to a
    checkpoint, its cosignatures stay.
    """

    __tablename__ = "log_cosignatures"

    size: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    witness: Mapped[str] = mapped_column(primary_key=True)
    line: Mapped[str]

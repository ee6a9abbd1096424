"""Forget requests, obligations, runs and outbox."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged
from app.runtime.database.leases import Leased


class SubjectRequestRow(Logged, Base):
    """A controller's request about one person, over all datasets; see OpenDSR 2.0."""

    __tablename__ = "subject_requests"
    __table_args__ = (
        UniqueConstraint("api_key_id", "subject_request_id"),
        CheckConstraint(
            "status IN ('pending', 'in_progress', 'completed', 'cancelled')", name="status"
        ),
        CheckConstraint(
            "num_nulls(subject_request_id, request_digest, salt) IN (0, 3)", name="evidence"
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    subject_request_id: Mapped[str | None]
    """The controller's own; it goes with the other evidence (``evidence.py``)."""
    request_digest: Mapped[bytes | None]
    salt: Mapped[bytes | None]
    """Random, so that the log's digests of the row tell nothing once it is destroyed."""
    regulation: Mapped[str]
    status: Mapped[str | None]
    """None only within the transaction that creates the row."""
    submitted_at: Mapped[datetime]
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]


class ForgetRequestRow(Logged, Base):
    """The request that some records or subjects be forgotten."""

    __tablename__ = "forget_requests"
    __table_args__ = (
        UniqueConstraint("api_key_id", "external_key"),
        UniqueConstraint("api_key_id", "idempotency_key"),
        CheckConstraint(
            "state IN ('received', 'refused', 'accepted', 'unlearning', 'certified', 'completed',"
            " 'failed', 'cancelled')",
            name="state",
        ),
        CheckConstraint(
            "(forget_epoch IS NULL) = (state IN ('received', 'refused'))", name="forget_epoch"
        ),
        CheckConstraint(
            "num_nonnulls(ground, refused_at) = CASE state WHEN 'refused' THEN 2 ELSE 0 END",
            name="ground",
        ),
        CheckConstraint(
            "(salt IS NULL) = (request_digest IS NULL) AND (salt IS NOT NULL OR num_nonnulls("
            "external_key, idempotency_key, explanation, extension_reason) = 0)",
            name="evidence",
        ),
        CheckConstraint("ground IS NOT NULL OR explanation IS NULL", name="explanation"),
        Index("ix_forget_requests_dataset_id_forget_epoch", "dataset_id", "forget_epoch"),
        Index("ix_forget_requests_external_key", "external_key"),
        Index("ix_forget_requests_received_at_id", "received_at", "id"),
        Index(
            "ix_forget_requests_open_due_at",
            "due_at",
            postgresql_where="completed_at IS NULL",
        ),
        Index(
            "ix_forget_requests_evidence",
            text("coalesce(completed_at, refused_at)"),
            postgresql_where="salt IS NOT NULL",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    dataset_id: Mapped[str] = mapped_column(ForeignKey("datasets.id"))
    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    external_key: Mapped[bytes | None]
    """Keyed hash of the caller's own id of the request, which may name a person."""
    idempotency_key: Mapped[bytes | None]
    """Keyed hash, for the same reason."""
    request_digest: Mapped[bytes | None]
    salt: Mapped[bytes | None]
    """Random: the receipt's salt is derived from it, and the log's digests of the row and of its
    records tell nothing without it. None once the evidence is destroyed (``evidence.py``)."""
    state: Mapped[str] = mapped_column(index=True)
    forget_epoch: Mapped[int | None] = mapped_column(BigInteger)
    """None until it is accepted: none of its records is forgotten by it."""
    record_count: Mapped[int]
    push_count: Mapped[int]
    """How many pushes brought those of its records that are stored."""
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]
    due_soon_noted_at: Mapped[datetime | None]
    overdue_noted_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    refused_at: Mapped[datetime | None]
    failure_reason: Mapped[str | None]
    ground: Mapped[str | None]
    """Of a refusal; ``explanation`` is what a person wrote about it."""
    explanation: Mapped[str | None]
    extension_reason: Mapped[str | None]
    """What a person wrote when the deadline was extended, which is done once."""
    callback_count: Mapped[int] = mapped_column(server_default="0")
    replacement_count: Mapped[int] = mapped_column(server_default="0")
    """How many records took the place of those that it names, when it was accepted."""
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


class AccountedRequestRow(Base):
    """A request that the certificates of a lineage account for, and all of them up to it.

    A lineage is what became of one training, or of one upload: a model's versions since one of
    them. The other columns count all requests up to this one: ``covered_size`` and
    ``excluded_size`` are where its commitments end in the lineage's trees; see ``accounts``.
    """

    __tablename__ = "accounted_requests"
    __table_args__ = (
        UniqueConstraint("model_id", "since_version", "request_id"),
        CheckConstraint("covered_size >= records", name="covered_size"),
        CheckConstraint("excluded_size >= excluded_records", name="excluded_size"),
        CheckConstraint("records >= before_training", name="before_training"),
    )

    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"), primary_key=True)
    since_version: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Counts a lineage's requests from 1, in the order in which they were certified."""
    request_id: Mapped[str] = mapped_column(ForeignKey("forget_requests.id"))
    covered_size: Mapped[int] = mapped_column(BigInteger)
    excluded_size: Mapped[int] = mapped_column(BigInteger)
    requests: Mapped[int] = mapped_column(BigInteger)
    """How many of them have a record that the weights may have learned from."""
    records: Mapped[int] = mapped_column(BigInteger)
    excluded_records: Mapped[int] = mapped_column(BigInteger)
    forgotten_through: Mapped[int] = mapped_column(BigInteger)
    """The newest epoch at which one of ``records`` was forgotten."""
    begun_at_epoch: Mapped[int] = mapped_column(BigInteger)
    before_training: Mapped[int] = mapped_column(BigInteger)
    """How many of ``records`` were forgotten at ``begun_at_epoch``."""


class RunRow(Logged, Leased, Base):
    """One piece of worker work on one model."""

    __tablename__ = "runs"
    __left_out__ = frozenset(
        {
            *("fencing_token", "lease_expires_at", "enqueued_at", "phase", "step", "total_steps"),
            *("epsilon", "loss", "phase_seconds", "reports"),
        }
    )
    __table_args__ = (
        CheckConstraint("kind IN ('train', 'certify', 'unlearn', 'refill')", name="kind"),
        CheckConstraint(
            "state IN ('queued', 'leased', 'running', 'published', 'failed', 'cancelled')",
            name="state",
        ),
        CheckConstraint("epsilon IS NULL OR epsilon >= 0", name="epsilon"),
        Index(
            "uq_runs_one_active",
            "model_id",
            unique=True,
            postgresql_where="kind <> 'refill' AND state IN ('queued', 'leased', 'running')",
        ),
        Index(
            "uq_runs_one_refill",
            "model_id",
            unique=True,
            postgresql_where="kind = 'refill' AND state IN ('queued', 'leased', 'running')",
        ),
        Index("ix_runs_created_at_id", "created_at", "id"),
        Index("ix_runs_model_id_created_at", "model_id", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(index=True)
    plan: Mapped[dict[str, Any]]
    attempt: Mapped[int] = mapped_column(server_default="0")
    enqueued_at: Mapped[datetime | None]
    forget_epoch: Mapped[int | None] = mapped_column(BigInteger)
    """Everything forgotten up to this epoch is left out and covered; fixed when data is read."""
    trained_through: Mapped[int | None] = mapped_column(BigInteger)
    """Of a training: the last record that it reads, fixed with the epoch."""
    counts: Mapped[list[list[int]] | None] = mapped_column(JSONB(none_as_null=True))
    """Of a training: how many records each member learns from and holds out, at that epoch."""
    phase: Mapped[str | None]
    step: Mapped[int | None]
    total_steps: Mapped[int | None]
    epsilon: Mapped[float | None]
    loss: Mapped[float | None]
    failure_reason: Mapped[str | None]
    phase_seconds: Mapped[dict[str, Any] | None]
    reports: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))
    """What its present attempt has reported (``runs.with_report``)."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class MemberTrainingRow(Leased, Base):
    """A member of an ensemble that an attempt at a run trains; see ``ensembles/trainings.py``.

    Its lease has no end while the run's own worker trains it.
    """

    __tablename__ = "member_trainings"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'leased', 'done')", name="state"),
        CheckConstraint("member >= 0", name="member"),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    member: Mapped[int] = mapped_column(primary_key=True)
    run_token: Mapped[int] = mapped_column(BigInteger)
    """The fencing token of the attempt."""
    state: Mapped[str]
    blob_id: Mapped[str | None]
    """What another worker hands over; it is the attempt's, and is shredded with its end."""


class ObligationRow(Logged, Base):
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
    certificate_id: Mapped[str | None] = mapped_column(ForeignKey("certificates.id"), index=True)
    state: Mapped[str]
    basis: Mapped[str]
    failure_reason: Mapped[str | None]


class OutboxRow(Base):
    """Something that must happen after the transaction that wrote it: at least once."""

    __tablename__ = "outbox"
    __table_args__ = (
        CheckConstraint(
            "topic IN ('schedule_model', 'enqueue_run', 'enqueue_members')", name="topic"
        ),
        Index("ix_outbox_available_at", "available_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    topic: Mapped[str]
    subject_id: Mapped[str]
    posted_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    available_at: Mapped[datetime]

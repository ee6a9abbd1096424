"""Callers' addresses and the events to send there: a separate outbox."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged


class CallbackEndpointRow(Base):
    """One address for one request, or one derivative.

    The address is encrypted, and removed when no longer needed.
    """

    __tablename__ = "callback_endpoints"
    __table_args__ = (
        CheckConstraint("state IN ('active', 'disabled', 'closed')", name="state"),
        CheckConstraint(
            "num_nonnulls(request_id, subject_request_id, derivative_id) = 1", name="subject"
        ),
        CheckConstraint(
            "(state = 'active') = (url IS NOT NULL) AND (url IS NULL) = (url_digest IS NULL)",
            name="url",
        ),
        Index("ix_callback_endpoints_ended", "ended_at", postgresql_where="state = 'active'"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    request_id: Mapped[str | None] = mapped_column(ForeignKey("forget_requests.id"), index=True)
    subject_request_id: Mapped[str | None] = mapped_column(
        ForeignKey("subject_requests.id"), index=True
    )
    derivative_id: Mapped[str | None] = mapped_column(ForeignKey("derivatives.id"), index=True)
    state: Mapped[str] = mapped_column(server_default="active")
    url: Mapped[bytes | None]
    url_digest: Mapped[bytes | None]
    emitted: Mapped[int] = mapped_column(server_default="0")
    """Number of events so far; the newest one's sequence number."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    ended_at: Mapped[datetime | None]
    """When the final event was created."""


class CallbackEventRow(Base):
    """One event for one address, with its outcome."""

    __tablename__ = "callback_events"
    __table_args__ = (
        UniqueConstraint("endpoint_id", "sequence"),
        CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
        CheckConstraint("(state = 'pending') = (next_attempt_at IS NOT NULL)", name="next_attempt"),
        CheckConstraint("sequence >= 1 AND attempts >= 0", name="counts"),
        Index("ix_callback_events_due", "next_attempt_at", postgresql_where="state = 'pending'"),
        Index("ix_callback_events_dead", "created_at", "id", postgresql_where="state = 'dead'"),
        Index("ix_callback_events_created_at_id", "created_at", "id"),
        Index(
            "ix_callback_events_delivered", "delivered_at", postgresql_where="state = 'delivered'"
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("callback_endpoints.id"))
    sequence: Mapped[int]
    type: Mapped[str]
    facts: Mapped[dict[str, Any]]
    """The content: the service's own ids, and states; never an owner's id."""
    state: Mapped[str] = mapped_column(server_default="pending")
    attempts: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    next_attempt_at: Mapped[datetime | None] = mapped_column(server_default=func.clock_timestamp())
    delivered_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    """Why the last attempt failed; never where."""


class CallbackSecretRow(Logged, Base):
    """How often a caller rotated its signing secret; no row if never."""

    __tablename__ = "callback_secrets"
    __table_args__ = (CheckConstraint("generation >= 1", name="generation"),)

    api_key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    generation: Mapped[int]
    rotated_at: Mapped[datetime]

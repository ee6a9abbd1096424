"""Callers, and the answers that their repeated calls get."""

from datetime import datetime

from sqlalchemy import CheckConstraint, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged


class ApiKeyRow(Logged, Base):
    """A caller: one with a key, or one whose tokens an issuer signs.

    Only a hash of the key is stored, or a keyed hash of the token's issuer and subject. What a
    token allows is in the token, so ``scopes`` is empty then.
    """

    __tablename__ = "api_keys"
    __left_out__ = frozenset({"last_used_at"})
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


class IdempotencyKeyRow(Base):
    """A call made under an ``Idempotency-Key``, and its answer once there is one.

    The key is stored as a keyed hash, the answer encrypted under a key derived from the caller's
    (see ``app/access/idempotency.py``).
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

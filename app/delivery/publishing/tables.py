"""What each place should hold of a model, and which versions have been sent there."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from app.runtime.database import Base
from app.runtime.database.engine import Logged


class PlacementRow(Logged, Base):
    """A model at one target: an outbox row that stays, with what is wanted and what was reached.

    ``generation`` counts the changes of what is wanted; who worked for an earlier one works again.
    """

    __tablename__ = "placements"
    __left_out__ = frozenset(
        {
            *("generation", "version_id", "certificate_id", "attempts", "due_at"),
            *("unsettled_since", "checked_at", "failure"),
        }
    )
    __table_args__ = (
        UniqueConstraint("model_id", "target"),
        CheckConstraint("attempts >= 0 AND generation >= 0", name="counts"),
        CheckConstraint("(due_at IS NULL) = (unsettled_since IS NULL)", name="due"),
        Index("ix_placements_due", "due_at", postgresql_where="due_at IS NOT NULL"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    model_id: Mapped[str] = mapped_column(ForeignKey("models.id"))
    target: Mapped[str]
    is_wanted: Mapped[bool]
    """Whether the model's served version should be there; else nothing of it should."""
    generation: Mapped[int] = mapped_column(BigInteger, server_default="0")
    version_id: Mapped[str | None] = mapped_column(ForeignKey("versions.id"))
    """What should be there, as of the last attempt."""
    certificate_id: Mapped[str | None] = mapped_column(ForeignKey("certificates.id"))
    attempts: Mapped[int] = mapped_column(server_default="0")
    """Failed ones since the last success."""
    due_at: Mapped[datetime | None] = mapped_column(server_default=func.clock_timestamp())
    unsettled_since: Mapped[datetime | None] = mapped_column(server_default=func.clock_timestamp())
    checked_at: Mapped[datetime | None]
    failure: Mapped[str | None]
    """Why the last attempt failed; never where."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class CopyRow(Logged, Base):
    """A version at a target, from before its first byte is sent until it is surely gone."""

    __tablename__ = "copies"
    __table_args__ = (
        Index(
            "uq_copies_present",
            "placement_id",
            "version_id",
            unique=True,
            postgresql_where="removed_at IS NULL",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    placement_id: Mapped[str] = mapped_column(ForeignKey("placements.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("versions.id"))
    sent_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    placed_at: Mapped[datetime | None]
    removed_at: Mapped[datetime | None]

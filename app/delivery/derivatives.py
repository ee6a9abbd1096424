"""Models that others made of a downloaded version: who is told when that version is withdrawn.

They are told by a callback, signed and repeated like those of requests, and may answer.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import ForeignKey, UniqueConstraint, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.delivery.callbacks.events import Callbacks, emit
from app.domain.errors import ConflictError
from app.domain.ids import new_id
from app.evidence import log
from app.registry.tables import ModelRow, VersionRow
from app.runtime.database import Base
from app.runtime.database.engine import Logged
from app.runtime.database.queries import known, stored


class DerivativeRow(Logged, Base):
    """A model made of a version. The contact is encrypted, as callbacks' addresses are."""

    __tablename__ = "derivatives"
    __table_args__ = (UniqueConstraint("version_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("versions.id"))
    name: Mapped[str]
    contact: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    told_at: Mapped[datetime | None]
    acknowledged_at: Mapped[datetime | None]
    answer: Mapped[str | None]


def register(
    session: Session,
    callbacks: Callbacks,
    model: ModelRow,
    version: VersionRow,
    *,
    name: str,
    contact: str,
    url: str,
    api_key_id: str,
) -> DerivativeRow:
    """Register a model made of a version; it is told at once if that was withdrawn before.

    The model is locked.

    Raises:
        ConflictError: the name is taken for this version.
        InvalidInputError: the callback's address is not allowed.
    """
    mine = (DerivativeRow.version_id == version.id, DerivativeRow.name == name)
    if session.scalar(select(DerivativeRow.id).where(*mine)) is not None:
        raise ConflictError(f"derivative {name!r} of version {version.number} exists already")
    row_id = new_id("der")
    row = DerivativeRow(
        id=row_id,
        version_id=version.id,
        name=name,
        contact=callbacks.keys.encrypt(contact, endpoint_id=row_id),
    )
    session.add(row)
    session.flush()
    log.append(session, "derivative.registered", derivative=row.id, model=model.id)
    callbacks.register(session, [url], api_key_id=api_key_id, derivative_id=row.id)
    if version.retired_at is not None:
        tell(session, model, version)
    return stored(session, row)


def tell(session: Session, model: ModelRow, version: VersionRow) -> None:
    """Tell those who made something of a version, which was withdrawn, as the caller commits."""
    query = select(DerivativeRow).where(
        DerivativeRow.version_id == version.id, DerivativeRow.told_at.is_(None)
    )
    for row in session.scalars(query.order_by(DerivativeRow.id).with_for_update()):
        row.told_at = func.clock_timestamp()
        log.append(session, "derivative.told", derivative=row.id)
        facts = {
            "derivative": row.id,
            "model": model.name,
            "version": version.number,
            "state": "withdrawn",
            "registered_at": row.created_at.astimezone(UTC).isoformat(),
        }
        emit(session, "derivative.withdrawn", facts, derivative_id=row.id, final=True)


def acknowledge(
    session: Session, model: ModelRow, derivative_id: str, answer: str
) -> tuple[DerivativeRow, int]:
    """Note what a team answers, once; return its derivative, and the version's number.

    Raises:
        NotFoundError: the model has no such derivative.
        ConflictError: it was not told yet, or has answered.
    """
    query = select(DerivativeRow, VersionRow.number).join(VersionRow)
    mine = query.where(DerivativeRow.id == derivative_id, VersionRow.model_id == model.id)
    found = session.execute(mine.with_for_update(of=DerivativeRow)).one_or_none()
    row, number = known(found, "derivative", derivative_id)
    if row.told_at is None or row.acknowledged_at is not None:
        raise ConflictError("there is nothing to answer yet, or it was answered")
    row.acknowledged_at, row.answer = func.clock_timestamp(), answer
    log.append(session, "derivative.acknowledged", derivative=row.id)
    return stored(session, row), number


def of_model(session: Session, model_id: str) -> Sequence[tuple[DerivativeRow, int]]:
    """Return a model's derivatives, each with its version's number, in the order of both."""
    query = select(DerivativeRow, VersionRow.number).join(VersionRow)
    mine = query.where(VersionRow.model_id == model_id)
    rows = session.execute(mine.order_by(VersionRow.number, DerivativeRow.created_at))
    return [(row, number) for row, number in rows]

"""Checkpoints: signed tree heads of the log, issued after publications and periodically."""

from sqlalchemy import DateTime, Float, cast, exists, func, insert, select
from sqlalchemy.orm import Session

from app.domain import merkle
from app.domain.errors import ConfigurationError, CorruptLogError, NotReadyError
from app.domain.merkle import Frontier
from app.evidence.certificates.note import Checkpoint
from app.evidence.certificates.signing import StatementSigner
from app.evidence.log.tables import LogCheckpointRow, LogEntryRow, SigningKeyRow

_ORIGIN_HEX_DIGITS = 32
_EMPTY = "the log is empty: it gets its name with its first entry"
# One statement, because the log's lock is held: the key in use, the newest checkpoint's size, and
# the first entry.
_SIGNING = select(
    select(SigningKeyRow.id).where(SigningKeyRow.valid_until.is_(None)).scalar_subquery(),
    select(func.coalesce(func.max(LogCheckpointRow.size), 0)).scalar_subquery(),
    select(LogEntryRow.body).where(LogEntryRow.index == 0).scalar_subquery(),
)


def origin(session: Session) -> str:
    """Return the log's name, which is derived from its first entry and never changes."""
    first = session.scalar(select(LogEntryRow.body).where(LogEntryRow.index == 0))
    if first is None:
        raise NotReadyError(_EMPTY)
    return origin_from(first)


def origin_from(first_body: str) -> str:
    """Return the name of the log that begins with this entry."""
    return f"expunge/{merkle.leaf_hash(first_body.encode()).hex()[:_ORIGIN_HEX_DIGITS]}"


def latest(session: Session) -> LogCheckpointRow:
    """Return the newest checkpoint; ``NotReadyError`` if none has been signed yet."""
    query = select(LogCheckpointRow).order_by(LogCheckpointRow.size.desc()).limit(1)
    row = session.scalar(query)
    if row is None:
        raise NotReadyError("the log has no signed checkpoint yet")
    return row


def is_due(session: Session, *, interval_s: float) -> bool:
    """Return whether the log has grown since the newest checkpoint, and that one is old enough.

    One from the future is: the clock was set back.
    """
    size, age_s = newest(session)
    has_grown = exists().where(LogEntryRow.index >= size)
    return (age_s is None or not 0 <= age_s < interval_s) and bool(
        session.scalar(select(has_grown))
    )


def newest(session: Session) -> tuple[int, float | None]:
    """Return how many entries the newest checkpoint covers, and its age in seconds.

    Without a checkpoint these are 0 and None.
    """
    recorded_at = func.substring(LogEntryRow.body, '"recorded_at":"([^"]*)"')
    age = func.clock_timestamp() - cast(recorded_at, DateTime(timezone=True))
    query = (
        select(LogCheckpointRow.size, cast(func.extract("epoch", age), Float))
        .outerjoin(LogEntryRow, LogEntryRow.index == LogCheckpointRow.size - 1)
        .order_by(LogCheckpointRow.size.desc())
    )
    size, age_s = session.execute(query.limit(1)).one_or_none() or (0, None)
    return size, age_s


def signed_size(session: Session) -> int:
    """Return how many entries the newest checkpoint covers; 0 if there is none."""
    return session.scalar(select(func.max(LogCheckpointRow.size))) or 0


def issue(session: Session, signer: StatementSigner, frontier: Frontier) -> None:
    """Sign the current log unless it is signed already. The caller holds the log's lock.

    Raises:
        ConfigurationError: another key is in use, perhaps because of a rotation just now.
        NotReadyError: the log is empty.
        CorruptLogError: an earlier checkpoint covers entries that do not exist.
    """
    in_use, signed, first = session.execute(_SIGNING).one()
    if in_use not in (None, signer.key_id):
        raise ConfigurationError("the signing key was changed: start the service again")
    if signed > frontier.size:
        raise CorruptLogError("the log is shorter than its checkpoints; run 'expunge log fsck'")
    if signed == frontier.size:
        return
    if first is None:
        raise NotReadyError(_EMPTY)
    name = origin_from(first)
    checkpoint = Checkpoint(name, frontier.size, frontier.root())
    session.execute(
        insert(LogCheckpointRow).values(
            size=checkpoint.size,
            root=checkpoint.root,
            note=signer.sign_note(checkpoint.text(), name=name),
        )
    )

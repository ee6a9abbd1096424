"""The public signing keys with their periods of validity; one of them is in use.

Private keys are in files. A service signs only with the key that the ledger names, so a process
that still holds a retired key publishes nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.domain.errors import (
    ConfigurationError,
    InvalidInputError,
    NotReadyError,
    VerificationError,
)
from app.evidence import log
from app.evidence.certificates.note import NoteKey
from app.evidence.certificates.signing import StatementSigner
from app.evidence.certificates.trusted_keys import (
    TrustedKey,
    TrustedKeys,
    ed25519_of,
    read_trusted_keys,
)
from app.evidence.log import actor, checkpoints, trees
from app.evidence.log.tables import SigningKeyRow
from app.runtime.database import Database
from app.runtime.locations import signing_key_file
from app.runtime.settings import Settings

_EVER = datetime.min.replace(tzinfo=UTC)


def require_in_use(session: Session, signer: StatementSigner) -> None:
    """Check that a key may sign; the very first key becomes the key in use.

    Raises:
        ConfigurationError: another key is in use.
    """
    in_use = _in_use(session)
    if in_use is None:
        with actor.acting_as(actor.SERVICE):
            _add(session, TrustedKey(signer.public_key))
        in_use = _in_use(session)
    if in_use is None or in_use.id != signer.key_id:
        raise ConfigurationError(
            "the signing key in the data directory is not the one in use: start the service again, "
            "or see 'expunge signing-key'"
        )


def is_in_use(session: Session, signer: StatementSigner) -> bool:
    """Return whether a key is the one in use."""
    in_use = _in_use(session)
    return in_use is not None and in_use.id == signer.key_id


def may_sign(session: Session, signer: StatementSigner) -> bool:
    """Return whether a key may sign: it is in use, or it is the very first."""
    in_use = _in_use(session)
    return in_use is None or in_use.id == signer.key_id


def rotate(
    session: Session,
    *,
    old: StatementSigner,
    new: StatementSigner,
    compromised_since: datetime | None = None,
) -> None:
    """Replace the key in use; after the commit the old one no longer signs.

    ``compromised_since`` invalidates the old key's signatures from that time on; the statements
    that are in the log get a signature of the new key when they are served.

    Raises:
        ConfigurationError: the old key is not in use, or the new one was used before.
        InvalidInputError: ``compromised_since`` lies in the future.
    """
    require_in_use(session, old)
    _succeed(session, old.key_id, new, compromised_since=compromised_since)


def succeed_lost(session: Session, new: StatementSigner, known: TrustedKeys | None = None) -> bool:
    """Replace a key in use whose private half is gone; False if nothing had to be done.

    This happens when a ledger is restored from a backup taken before a rotation. ``known`` is what
    verifiers were given after it. If the new key is in use there, its keys are taken over with
    their dates: what was compromised stays so.

    Raises:
        ConfigurationError: the new key was used before.
    """
    in_use = _in_use(session)
    if in_use is None or in_use.id == new.key_id:
        return False
    keys = () if known is None else known.keys
    if not any(key.id == new.key_id and key.valid_until is None for key in keys):
        _succeed(session, in_use.id, new)
        return True
    for key in sorted(keys, key=lambda key: key.valid_from or _EVER):
        row = session.get(SigningKeyRow, key.id)
        if row is None:
            _add(session, key)
        if key.valid_until is not None and (row is None or row.valid_until is None):
            _end(session, key.id, key.valid_until, key.compromised_since)
    log.checkpoint_at_commit(session, new)
    return True


def _succeed(
    session: Session,
    old_id: str,
    new: StatementSigner,
    *,
    compromised_since: datetime | None = None,
) -> None:
    if session.get(SigningKeyRow, new.key_id) is not None:
        raise ConfigurationError("the new signing key was used before")
    # Lock the log first: what the old key still signs is recorded before it is retired.
    now, _ = trees.frontier(session)
    if compromised_since is not None and compromised_since > now:
        raise InvalidInputError("compromised-since: must not lie in the future")
    _end(session, old_id, now, compromised_since)
    _add(session, TrustedKey(new.public_key, valid_from=now))
    log.checkpoint_at_commit(session, new)


def _end(
    session: Session, key_id: str, valid_until: datetime, compromised_since: datetime | None
) -> None:
    row = session.get_one(SigningKeyRow, key_id, with_for_update=True)
    row.valid_until, row.compromised_since = valid_until, compromised_since
    session.flush()
    facts = {} if compromised_since is None else {"compromised_since": _iso(compromised_since)}
    log.append(session, "key.retired", key=key_id, valid_until=_iso(valid_until), **facts)


def trusted(session: Session) -> TrustedKeys:
    """Return what verifiers should trust."""
    keys = [
        TrustedKey(
            ed25519_of(row.pem),
            valid_from=row.valid_from,
            valid_until=row.valid_until,
            compromised_since=row.compromised_since,
        )
        for row in all_keys(session)
    ]
    return TrustedKeys(checkpoints.origin(session), tuple(keys))


def note_key(session: Session) -> NoteKey:
    """Return the key in use as a key for checking the log's notes, or raise ``NotReadyError``."""
    in_use = _in_use(session)
    if in_use is None:
        raise NotReadyError("nothing was signed yet")
    return NoteKey(checkpoints.origin(session), ed25519_of(in_use.pem))


def all_keys(session: Session) -> Sequence[SigningKeyRow]:
    """Return every key, the one in use first."""
    query = select(SigningKeyRow)
    return session.scalars(query.order_by(SigningKeyRow.valid_from.desc().nulls_last())).all()


def _in_use(session: Session) -> SigningKeyRow | None:
    return session.scalar(select(SigningKeyRow).where(SigningKeyRow.valid_until.is_(None)))


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _add(session: Session, key: TrustedKey) -> None:
    """Record a key as the one in use, unless another process did so at the same moment."""
    added = session.scalar(
        insert(SigningKeyRow)
        .values(id=key.id, pem=key.pem, valid_from=key.valid_from)
        .on_conflict_do_nothing()
        .returning(SigningKeyRow.id)
    )
    if added is not None:
        log.changed(session, SigningKeyRow, [added])
        log.append(
            session,
            "key.activated",
            key=key.id,
            pem=key.pem,
            valid_from=_iso(key.valid_from),
        )


def ensure_trusted_keys(settings: Settings, database: Database) -> TrustedKeys:
    """Return what the file says; without a file, write what the ledger says.

    Raises:
        ConfigurationError: the file cannot be read, or the signing key.
    """
    path = settings.trusted_keys_file
    if path.exists():
        try:
            return read_trusted_keys(path.read_bytes())
        except VerificationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
    signer = StatementSigner.from_file(signing_key_file(settings))
    with database.transaction() as session:
        if may_sign(session, signer):  # else a rotation has to be finished
            require_in_use(session, signer)
    with database.transaction() as session:
        known = trusted(session)
    known.write(path)
    return known


def require_same(known: TrustedKeys, stored: TrustedKeys) -> None:
    """Check that the ledger and the file agree about every key.

    Raises:
        ConfigurationError: they do not; the message names the key and the field.
    """
    difference = known.difference(stored)
    if difference is not None:
        raise ConfigurationError(
            f"trusted-keys.json and the ledger differ: {difference}. The file was not changed. "
            "After a rotation that was interrupted, repeat 'expunge signing-key rotate' with the "
            "same options; after a restore, run 'expunge reconcile'. Otherwise someone has changed "
            "the ledger or the file: see 'expunge log fsck'"
        )


def require_rotated(
    known: TrustedKeys,
    stored: TrustedKeys,
    new: StatementSigner,
    *,
    compromised_since: datetime | None = None,
) -> None:
    """Check that the ledger differs from the file by one rotation at most, to a key of ours.

    Raises:
        ConfigurationError: it differs in something else.
    """
    at = next((key.valid_from for key in stored.keys if key.id == new.key_id), None)
    if at is not None and all(key.id != new.key_id for key in known.keys):
        known = known.rotated(new.public_key, at=at, compromised_since=compromised_since)
    require_same(known, stored)

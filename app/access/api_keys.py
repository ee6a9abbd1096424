"""Callers: some have an API key, made once and stored hashed, others the tokens of an issuer."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import Double, cast, event, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.access.tables import ApiKeyRow
from app.domain import errors
from app.domain.ids import new_id
from app.domain.states import Scope
from app.evidence import log
from app.runtime.database.queries import known, newest_first, stored

PREFIX = "xpg_"
_KEY_BYTES = 32

_COARSE = timedelta(minutes=1)
_REVOKED = "expunge.keys.revoked"
_revocations = 0


class CallerKind(StrEnum):
    """The identity by which a caller is known."""

    KEY = "key"
    OIDC = "oidc"


@dataclass(frozen=True)
class Caller:
    """The caller, and what its key or token allows.

    Attributes:
        lasts_s: for how many seconds that holds; None if it does not expire.
    """

    key_id: str
    scopes: frozenset[Scope]
    lasts_s: float | None = field(default=None, compare=False)

    def allows(self, scope: Scope) -> bool:
        """Say whether the caller has a scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def create_key(
    session: Session,
    *,
    name: str,
    scopes: Collection[Scope],
    expires_at: datetime | None = None,
) -> tuple[ApiKeyRow, str]:
    """Create a key; its secret is returned only here. ``InvalidInputError`` if it has expired."""
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise errors.InvalidInputError("expires_at lies in the past")
    secret = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    row = ApiKeyRow(
        id=new_id("key"),
        kind=CallerKind.KEY,
        name=name,
        key_hash=digest_of(secret),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
    )
    session.add(row)
    stored(session, row)
    until = {} if expires_at is None else {"expires_at": expires_at.astimezone(UTC).isoformat()}
    log.append(session, "key.created", key=row.id, scopes=row.scopes, **until)
    return row, secret


def holder_of(session: Session, secret: str) -> Caller:
    """Return the caller that a secret belongs to.

    Raises:
        InvalidCredentialsError: the key is unknown or revoked.
        ExpiredCredentialsError: the key has expired.
    """
    found = _seek(session, CallerKind.KEY, digest_of(secret))
    if found is None or found.row.revoked_at is not None:
        raise errors.InvalidCredentialsError("this is not an API key, or it was revoked")
    if found.expired:
        raise errors.ExpiredCredentialsError("this API key has expired")
    _note_use(session, found)
    return Caller(found.row.id, frozenset(map(Scope, found.row.scopes)), found.lasts_s)


def token_caller(session: Session, identity: bytes, scopes: Collection[Scope]) -> Caller:
    """Return the caller whose identity an issuer has confirmed; a new one is stored.

    ``identity`` is the keyed hash of issuer and subject.

    Raises:
        InvalidCredentialsError: the caller was revoked here.
    """
    found = _seek(session, CallerKind.OIDC, identity) or _add(session, identity)
    if found.row.revoked_at is not None:
        raise errors.InvalidCredentialsError("this caller was revoked")
    _note_use(session, found)
    return Caller(found.row.id, frozenset(scopes), lasts_s=0.0)  # tokens are checked at each call


def caller_with_id(session: Session, key_id: str) -> Caller | None:
    """Return the caller whose key has this id, or None if the key is not valid any more."""
    query = select(ApiKeyRow).where(
        ApiKeyRow.id == key_id,
        ApiKeyRow.kind == CallerKind.KEY,
        ApiKeyRow.revoked_at.is_(None),
        func.coalesce(ApiKeyRow.expires_at > func.now(), True),
    )
    row = session.scalar(query)
    if row is None:
        return None
    return Caller(row.id, frozenset(Scope(scope) for scope in row.scopes))


def keys(
    session: Session, *, after: tuple[datetime, str] | None = None, limit: int
) -> Sequence[ApiKeyRow]:
    """Return a page of callers, newest first, older than the one at ``after``."""
    query, created_at = select(ApiKeyRow), ApiKeyRow.created_at
    return session.scalars(
        newest_first(query, created_at, ApiKeyRow.id, after=after, limit=limit)
    ).all()


def revoke(session: Session, key_id: str) -> None:
    """Revoke a caller's key, or refuse its tokens; ``NotFoundError`` if there is none."""
    row = known(session.get(ApiKeyRow, key_id), "API key", key_id)
    if row.revoked_at is None:
        row.revoked_at = func.now()
        log.append(session, "key.revoked", key=row.id)
        session.info[_REVOKED] = True


def revocations() -> int:
    """Return how often this process has revoked something; callers cached before may be stale."""
    return _revocations


@event.listens_for(Session, "after_soft_rollback")
def _drop_revocation(session: Session, _previous: object) -> None:
    session.info.pop(_REVOKED, None)


@event.listens_for(Session, "after_commit")
def _count_revocation(session: Session) -> None:
    global _revocations  # noqa: PLW0603 - of the process, whichever part of it revokes
    if session.info.pop(_REVOKED, False):
        _revocations += 1


def digest_of(secret: str) -> bytes:
    """Return a plain hash of a secret: its 256 random bits cannot be found by trying."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(frozen=True)
class _Found:
    row: ApiKeyRow
    expired: bool
    used_lately: bool
    lasts_s: float | None


def _seek(session: Session, kind: CallerKind, digest: bytes) -> _Found | None:
    query = select(
        ApiKeyRow,
        func.coalesce(ApiKeyRow.expires_at <= func.now(), False),
        func.coalesce(ApiKeyRow.last_used_at > func.now() - _COARSE, False),
        cast(func.extract("epoch", ApiKeyRow.expires_at - func.now()), Double),
    ).where(ApiKeyRow.kind == kind, ApiKeyRow.key_hash == digest)
    found = session.execute(query).one_or_none()
    return None if found is None else _Found(*found)


def _add(session: Session, identity: bytes) -> _Found:
    """Store a caller that has no key, unless another call has just done so."""
    values = {"id": new_id("oidc"), "kind": CallerKind.OIDC, "name": "oidc", "scopes": []}
    statement = insert(ApiKeyRow).values(key_hash=identity, **values).on_conflict_do_nothing()
    added = session.scalar(statement.returning(ApiKeyRow.id))
    if added is not None:
        log.changed(session, ApiKeyRow, [added])
        log.append(session, "caller.added", key=added)
    found = _seek(session, CallerKind.OIDC, identity)
    if found is None:
        raise errors.InvalidCredentialsError("this caller cannot be distinguished from another one")
    return found


def _note_use(session: Session, found: _Found) -> None:
    """Record when a caller was last seen: once a minute, and without waiting for another call."""
    if found.used_lately:
        return
    own = select(ApiKeyRow.id).where(ApiKeyRow.id == found.row.id)
    free = own.with_for_update(key_share=True, skip_locked=True).scalar_subquery()
    session.execute(
        update(ApiKeyRow).where(ApiKeyRow.id == free).values(last_used_at=func.now()),
        execution_options={"synchronize_session": False},
    )

"""API keys: made once, stored hashed, limited by scopes."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app.domain.errors import NotFoundError
from app.domain.ids import new_id
from app.ledger import log
from app.ledger.tables import ApiKeyRow

_PREFIX = "xpg_"
_KEY_BYTES = 32


class Scope(StrEnum):
    """What a key allows. ``admin`` allows everything."""

    FORGET_WRITE = "forget:write"
    FORGET_READ = "forget:read"
    MODELS_READ = "models:read"
    MODELS_WRITE = "models:write"
    DATA_WRITE = "data:write"
    LOG_READ = "log:read"
    ADMIN = "admin"


@dataclass(frozen=True)
class Caller:
    """Who makes a call, and what the key allows."""

    key_id: str
    scopes: frozenset[Scope]

    def allows(self, scope: Scope) -> bool:
        """Say whether the key has a scope."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def create_key(session: Session, *, name: str, scopes: Collection[Scope]) -> tuple[ApiKeyRow, str]:
    """Create a key; its secret is returned here and never again."""
    secret = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    row = ApiKeyRow(id=new_id("key"), name=name, key_hash=_hash(secret), scopes=sorted(set(scopes)))
    session.add(row)
    session.flush()
    session.refresh(row)
    log.append(session, "key.created", key=row.id, scopes=row.scopes)
    return row, secret


def caller_of(session: Session, secret: str) -> Caller | None:
    """Return the caller to whom a secret belongs, or None."""
    return _caller(session, ApiKeyRow.key_hash == _hash(secret))


def caller_with_id(session: Session, key_id: str) -> Caller | None:
    """Return the caller whose key has this id, or None if it does not hold any more."""
    return _caller(session, ApiKeyRow.id == key_id)


def _caller(session: Session, condition: ColumnElement[bool]) -> Caller | None:
    row = session.scalar(select(ApiKeyRow).where(condition, ApiKeyRow.revoked_at.is_(None)))
    if row is None:
        return None
    return Caller(row.id, frozenset(Scope(scope) for scope in row.scopes))


def keys(session: Session) -> Sequence[ApiKeyRow]:
    """Return all keys, newest first."""
    return session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created_at.desc())).all()


def revoke(session: Session, key_id: str) -> None:
    """Revoke a key; ``NotFoundError`` if there is none."""
    row = session.get(ApiKeyRow, key_id)
    if row is None:
        raise NotFoundError("API key", key_id)
    if row.revoked_at is None:
        row.revoked_at = func.now()
        log.append(session, "key.revoked", key=row.id)


def _hash(secret: str) -> bytes:
    # The secret is 256 random bits, so a plain hash cannot be searched.
    return hashlib.sha256(secret.encode()).digest()

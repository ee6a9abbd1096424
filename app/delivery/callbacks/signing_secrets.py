"""The secrets with which callers verify callbacks: one per API key, rotated on demand."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlalchemy.orm import Session

from app.delivery.callbacks.keys import CallbackKeys
from app.delivery.callbacks.tables import CallbackSecretRow
from app.evidence import log
from app.runtime.database.queries import stored

OVERLAP = timedelta(hours=24)
"""How long callbacks are signed with the previous secret as well."""


@dataclass(frozen=True)
class SigningSecret:
    """A caller's secret, and until when the previous one signs as well."""

    secret: str
    rotated_at: datetime | None
    previous_until: datetime | None


def current(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Return a caller's secret."""
    return _secret(keys, api_key_id, session.get(CallbackSecretRow, api_key_id))


def rotate(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Give a caller a new secret, and log it."""
    row = session.get(CallbackSecretRow, api_key_id, with_for_update=True)
    if row is None:
        row = CallbackSecretRow(api_key_id=api_key_id, generation=0)
        session.add(row)
    row.generation += 1
    row.rotated_at = func.clock_timestamp()
    log.append(session, "callback_secret.rotated", key=api_key_id)
    return _secret(keys, api_key_id, stored(session, row))


def signing(
    keys: CallbackKeys,
    api_key_id: str,
    *,
    generation: int,
    rotated_at: datetime | None,
    now: datetime,
) -> list[str]:
    """Return the secrets to sign with at a given time, newest first."""
    secrets = [keys.secret(api_key_id, generation=generation)]
    if rotated_at is not None and now < rotated_at + OVERLAP:
        secrets.append(keys.secret(api_key_id, generation=generation - 1))
    return secrets


def _secret(keys: CallbackKeys, api_key_id: str, row: CallbackSecretRow | None) -> SigningSecret:
    return SigningSecret(
        secret=keys.secret(api_key_id, generation=0 if row is None else row.generation),
        rotated_at=None if row is None else row.rotated_at,
        previous_until=None if row is None else row.rotated_at + OVERLAP,
    )

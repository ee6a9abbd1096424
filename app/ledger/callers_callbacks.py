"""What callers change about their callbacks, with a trace in the log."""

from sqlalchemy.orm import Session

from app.callbacks import repository, signing_secrets
from app.callbacks.keys import CallbackKeys
from app.callbacks.signing_secrets import SigningSecret
from app.callbacks.tables import CallbackEndpointRow, CallbackEventRow
from app.ledger import log


def rotate_secret(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Give a caller a new secret and log that it was done."""
    secret = signing_secrets.rotate(session, keys, api_key_id)
    log.append(session, "callback_secret.rotated", key=api_key_id)
    return secret


def redeliver(session: Session, callback_id: str) -> tuple[CallbackEventRow, CallbackEndpointRow]:
    """Have an event delivered now, whatever its state is, and log that this was requested.

    Raises:
        NotFoundError: the event does not exist.
        GoneError: its address was removed.
    """
    event, endpoint = repository.redeliver(session, callback_id)
    log.append(session, "callback.redelivered", callback=event.id)
    return event, endpoint

"""Changing the secret that signs a caller's callbacks, with a trace in the log."""

from sqlalchemy.orm import Session

from app.callbacks import signing_secrets
from app.callbacks.keys import CallbackKeys
from app.callbacks.signing_secrets import SigningSecret
from app.ledger import log


def rotate(session: Session, keys: CallbackKeys, api_key_id: str) -> SigningSecret:
    """Give a caller a new secret and log that it was done."""
    secret = signing_secrets.rotate(session, keys, api_key_id)
    log.append(session, "callback_secret.rotated", key=api_key_id)
    return secret

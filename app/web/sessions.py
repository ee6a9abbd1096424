"""Login sessions: a random id in a cookie, mapped to an API key in Redis.

Redis holds a hash of the session's id, the key's id, and a seal over both under a key that is not
in Redis. Reading Redis gives no access; writing to it can neither create a session nor move one to
another key. If Redis is wiped, users log in again.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta

from redis import Redis

from app.access.pseudonyms import Pseudonyms

_PREFIX = "expunge:session:"
_TOKEN_BYTES = 32


@dataclass(frozen=True)
class Sessions:
    """The valid sessions."""

    redis: Redis
    pseudonyms: Pseudonyms
    lifetime: timedelta

    def start(self, key_id: str) -> str:
        """Start a session for a key; return the secret for the cookie."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        seal = self.pseudonyms.session(token, key_id).hex()
        self.redis.set(_name(token), f"{key_id} {seal}", ex=self.lifetime)
        return token

    def key_of(self, token: str) -> str | None:
        """Return the id of a session's key, or None if the session is over."""
        found = self.redis.get(_name(token))
        if not isinstance(found, bytes):
            return None
        key_id, _, seal = found.decode(errors="replace").partition(" ")
        expected = self.pseudonyms.session(token, key_id).hex()
        return key_id if hmac.compare_digest(seal.encode(), expected.encode()) else None

    def end(self, token: str) -> None:
        """End a session now."""
        self.redis.delete(_name(token))


def _name(token: str) -> str:
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()

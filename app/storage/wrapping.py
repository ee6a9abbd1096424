"""How the keys of periods are wrapped: not at all, or by a key that stays in a key service.

A wrapped period key is the service's name, a colon, and what the service made of the key followed
by the SHA-256 of its context. The context names the store and the period. It is also given to the
service, which binds it; the hash binds it where a service ignores it.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from app.domain.errors import KeyServiceError, KeyStoreError
from app.storage.encryption import KEY_BYTES

KEEP_S = 300.0
"""How long a process uses an unwrapped key before it asks the service again."""

Context = Mapping[str, str]


class Wrapping(Protocol):
    """Wraps and unwraps keys of periods, 32 bytes each."""

    def wrap(self, key: bytes, context: Context) -> bytes:
        """Return what may be stored; ``KeyServiceError`` if the service fails or refuses."""

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Return the key."""


class KeyService(Protocol):
    """A service that encrypts with a key it never hands out. ``name`` is lower-case ASCII."""

    name: str

    def encrypt(self, content: bytes, context: Context) -> bytes:
        """Return the ciphertext; ``KeyServiceError`` if the service fails or refuses."""

    def decrypt(self, ciphertext: bytes, context: Context) -> bytes:
        """Return the content."""


class InDirectory:
    """Leaves keys as they are: anyone who can read the directory has them."""

    def wrap(self, key: bytes, context: Context) -> bytes:  # noqa: ARG002 - the interface's
        """Return the key as it is."""
        return key

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:  # noqa: ARG002 - likewise
        """Return the key; ``KeyStoreError`` if what is stored was wrapped by a service."""
        if len(wrapped) != KEY_BYTES:
            raise KeyStoreError("its period's key was wrapped by a service that no setting names")
        return wrapped


class InService:
    """Keys of periods are wrapped by a service, and unwrapped ones used for ``KEEP_S``.

    They are remembered by what is stored: once that is destroyed, nothing leads to them.
    """

    def __init__(self, service: KeyService, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._prefix = service.name.encode() + b":"
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[tuple[bytes, bytes], tuple[float, bytes]] = {}

    def wrap(self, key: bytes, context: Context) -> bytes:
        """Have the service wrap a key."""
        return self._prefix + self._service.encrypt(key + _hashed(context), context)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Return a key that was unwrapped a short while ago, or have the service unwrap it."""
        if not wrapped.startswith(self._prefix):
            raise KeyStoreError(f"its period's key was not wrapped by {self._service.name}")
        bound = _hashed(context)
        with self._lock:
            now = self._clock()
            self._kept = {kept: entry for kept, entry in self._kept.items() if now < entry[0]}
            kept = self._kept.get((wrapped, bound))
        if kept is not None:
            return kept[1]
        content = self._service.decrypt(wrapped.removeprefix(self._prefix), context)
        if len(content) != KEY_BYTES + len(bound) or content[KEY_BYTES:] != bound:
            raise KeyStoreError("its period's key was wrapped for another store or period")
        key = content[:KEY_BYTES]
        with self._lock:
            self._kept[wrapped, bound] = (now + KEEP_S, key)
        return key


@dataclass(frozen=True)
class Succession:
    """Wraps with one, and still unwraps what another wrapped before it."""

    now: Wrapping
    before: Wrapping

    def wrap(self, key: bytes, context: Context) -> bytes:
        """Have the present one wrap a key."""
        return self.now.wrap(key, context)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Have the present one unwrap a key, or else the earlier one."""
        try:
            return self.now.unwrap(wrapped, context)
        except (KeyStoreError, KeyServiceError):
            return self.before.unwrap(wrapped, context)


def serialized(context: Context) -> bytes:
    """Return a context as canonical JSON."""
    return json.dumps(context, sort_keys=True, separators=(",", ":")).encode()


def _hashed(context: Context) -> bytes:
    return hashlib.sha256(serialized(context)).digest()

"""The store of the objects' keys: separate from the database, its log and its backups.

Each object has a data key, wrapped by the key-encryption key (KEK) of the current period. When a
period ends, the remaining data keys are wrapped under a new KEK and the old KEK is destroyed, so
that older copies of wrapped keys become useless. A key management service may wrap the KEKs. Where
it is needed and fails, methods raise ``KeyServiceError``; destroying a key never needs it.

The store consists of files of mode 0600 on one file system, shared by the processes of one machine.
Layout: ``periods/N`` holds the KEK of period N, 32 random bytes. ``wrapped/BLOB`` holds the period
(4 bytes), a nonce (12) and the data key under AES-256-GCM with that period's KEK, with period and
blob as associated data (48). The newest period is the current one. ``store`` is the store's random
name. ``lock`` separates rotation from creation and destruction; reading needs no lock.

A KEK that a service wraps is stored as the service's name, a colon, and what the service made of
the KEK followed by the SHA-256 of its context. The context names the store and the period. It is
also given to the service, which binds it; the hash binds it where a service ignores it.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.domain.errors import ConfigurationError, GoneError, KeyServiceError, KeyStoreError
from app.runtime.keyfiles import key_file, not_set_up
from app.storage.encryption import KEY_BYTES
from app.storage.objects import erase, write_durably

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


_NONCE_BYTES = 12
_PERIOD_BYTES = 4
_WRAPPED_BYTES = _PERIOD_BYTES + _NONCE_BYTES + KEY_BYTES + 16
_READ_ATTEMPTS = 5


class FileKeyStore:
    """Data keys and KEKs in a directory that is private to its owner."""

    def __init__(
        self,
        root: Path,
        *,
        wrapping: Wrapping | None = None,
        create: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store; with ``create``, make it if it is missing.

        ``wrapping`` wraps the KEKs; without it they lie in the directory as they are.

        Raises:
            ConfigurationError: it is missing, or accessible to others.
        """
        self._root = root
        self._wrapping = InDirectory() if wrapping is None else wrapping
        self._periods, self._wrapped = root / "periods", root / "wrapped"
        self._clock = clock
        if create:
            for directory in (root, self._periods, self._wrapped):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._require_private()
        name = key_file(root / "store", lambda: os.urandom(16).hex().encode(), create=create)
        self._name = name.decode()
        if create and not self._period_numbers():
            self._begin_period(1)
        if not self._period_numbers():
            raise ConfigurationError(f"{root} holds no keys: run 'expunge init' first")

    def create(self, blob_id: str) -> bytes:
        """Return a fresh random data key, stored durably; it replaces an older one."""
        key = os.urandom(KEY_BYTES)
        with self._locked(fcntl.LOCK_SH):
            if self.holds(blob_id):
                erase(self._wrapped / blob_id)
            self._store(blob_id, key, self._period_numbers()[-1])
        return key

    def get(self, blob_id: str) -> bytes:
        """Return a blob's data key."""
        reason = ""
        for _ in range(_READ_ATTEMPTS):
            try:
                wrapped = (self._wrapped / blob_id).read_bytes()
            except FileNotFoundError as error:
                raise GoneError("the key of the stored object was destroyed") from error
            try:
                return self._unwrap(blob_id, wrapped)
            except (FileNotFoundError, InvalidTag):
                reason = ""  # a rotation or a destruction came between the two files
            except KeyStoreError as error:
                reason = f": {error}"
        raise KeyStoreError(f"the key of object {blob_id} cannot be unwrapped{reason}")

    def holds(self, blob_id: str) -> bool:
        """Return whether a blob's data key exists."""
        return (self._wrapped / blob_id).exists()

    def destroy(self, blob_id: str) -> None:
        """Overwrite and remove a blob's data key; a missing one is not an error."""
        with self._locked(fcntl.LOCK_SH), _failures_in_words("destroyed"):
            erase(self._wrapped / blob_id)

    def blob_ids(self) -> Iterator[str]:
        """Yield the blobs with data keys, including unfinished ones."""
        for path in self._wrapped.iterdir():
            yield path.stem

    def rotate(self) -> int:
        """Begin a new period now; return how many data keys were rewrapped.

        On return, every KEK but the new one is destroyed. The next rotation first finishes an
        interrupted one.
        """
        newest = self._period_numbers()[-1]
        if self._older_than(newest):
            self._finish_rotation()  # else each failing attempt would leave another period
        self._begin_period(newest + 1)
        return self._finish_rotation()

    def require_usable(self) -> None:
        """Check that the current period's KEK can be read and that keys can be added."""
        try:
            with self._locked(fcntl.LOCK_SH):
                numbers = self._period_numbers()
                key = self._kek(numbers[-1]) if numbers else b""
        except OSError as error:
            raise KeyStoreError("the key store cannot be read") from error
        if len(key) != KEY_BYTES:
            raise KeyStoreError("the key store has no key of the current period")
        if not os.access(self._wrapped, os.W_OK | os.X_OK):
            raise KeyStoreError("the key store cannot be written")

    def is_rotation_due(self, period_s: float) -> bool:
        """Return whether the current period began ``period_s`` ago or a rotation was interrupted.

        A period that began in the future is over: the clock was set back.
        """
        newest = self._period_numbers()[-1]
        age_s = self._clock() - (self._periods / str(newest)).stat().st_mtime
        return bool(self._older_than(newest)) or not -1.0 <= age_s < period_s

    def _finish_rotation(self) -> int:
        rewrapped = 0
        for blob_id in list(self.blob_ids()):
            with self._locked(fcntl.LOCK_EX):
                rewrapped += self._rewrap(blob_id)
        with self._locked(fcntl.LOCK_EX):
            for blob_id in list(self.blob_ids()):
                rewrapped += self._rewrap(blob_id)
            for number in self._older_than(self._period_numbers()[-1]):
                erase(self._periods / str(number))
        return rewrapped

    def _rewrap(self, blob_id: str) -> bool:
        newest = self._period_numbers()[-1]
        try:
            wrapped = (self._wrapped / blob_id).read_bytes()
        except FileNotFoundError:
            erase(self._wrapped / blob_id)  # left over from a crash
            return False
        if _period_of(wrapped) == newest:
            return False
        try:
            key = self._unwrap(blob_id, wrapped)
        except (FileNotFoundError, InvalidTag) as error:
            raise KeyStoreError(f"the key of object {blob_id} cannot be unwrapped") from error
        self._store(blob_id, key, newest)
        return True

    def _store(self, blob_id: str, key: bytes, period: int) -> None:
        kek, nonce = self._kek(period), os.urandom(_NONCE_BYTES)
        wrapped = AESGCM(kek).encrypt(nonce, key, _associated(period, blob_id))
        with _failures_in_words("stored"):
            content = period.to_bytes(_PERIOD_BYTES, "big") + nonce + wrapped
            write_durably(self._wrapped / blob_id, [content])

    def _unwrap(self, blob_id: str, wrapped: bytes) -> bytes:
        if len(wrapped) != _WRAPPED_BYTES:
            raise InvalidTag
        period = _period_of(wrapped)
        nonce, sealed = wrapped[_PERIOD_BYTES:][:_NONCE_BYTES], wrapped[-KEY_BYTES - 16 :]
        return AESGCM(self._kek(period)).decrypt(nonce, sealed, _associated(period, blob_id))

    def _kek(self, period: int) -> bytes:
        wrapped = (self._periods / str(period)).read_bytes()
        return self._wrapping.unwrap(wrapped, self._context(period))

    def _begin_period(self, number: int) -> None:
        """Add a period unless another process did meanwhile.

        Its KEK is wrapped before others are locked out, since a service may be slow, and unwrapped
        before a data key depends on it.
        """
        key, context = os.urandom(KEY_BYTES), self._context(number)
        wrapped = self._wrapping.wrap(key, context)
        if self._wrapping.unwrap(wrapped, context) != key:
            raise KeyStoreError("a period's key is not the same when it is unwrapped")
        with self._locked(fcntl.LOCK_EX), _failures_in_words("stored"):
            if number > max(self._period_numbers(), default=0):
                write_durably(self._periods / str(number), [wrapped])
                now = self._clock()
                os.utime(self._periods / str(number), (now, now))

    def _context(self, period: int) -> dict[str, str]:
        return {"purpose": "expunge period key", "store": self._name, "period": str(period)}

    def _period_numbers(self) -> list[int]:
        """Return the periods whose KEKs exist, in order."""
        return sorted(int(path.name) for path in self._periods.iterdir() if path.name.isdigit())

    def _older_than(self, newest: int) -> set[int]:
        """Return the older periods with any file left, even a half-erased one."""
        return {number for path in self._periods.iterdir() if (number := int(path.stem)) < newest}

    def _require_private(self) -> None:
        for directory in (self._root, self._periods, self._wrapped):
            if not directory.is_dir():
                raise not_set_up(directory)
            if directory.stat().st_mode & 0o077:
                raise ConfigurationError(
                    f"{directory} is open to others: run 'chmod 700 {directory}'"
                )

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        handle = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)


def _period_of(wrapped: bytes) -> int:
    return int.from_bytes(wrapped[:_PERIOD_BYTES], "big")


def _associated(period: int, blob_id: str) -> bytes:
    return f"expunge data key\0{period}\0{blob_id}".encode()


@contextmanager
def _failures_in_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KeyStoreError(f"a key cannot be {what}: {error.strerror}") from error

"""The store of the objects' keys: separate from the database, its log and its backups.

Each object has a data key, wrapped by the key-encryption key (KEK) of the current period. When a
period ends, the remaining data keys are wrapped under a new KEK and the old KEK is destroyed, so
that older copies of wrapped keys become useless. A key management service may wrap the KEKs. Where
it is needed and fails, methods raise ``KeyServiceError``; destroying a key never needs it.
"""

from collections.abc import Iterator
from typing import Protocol


class KeyStore(Protocol):
    """Data keys by blob. Several processes may use one store at the same time."""

    def create(self, blob_id: str) -> bytes:
        """Return a fresh random data key of 32 bytes, stored durably; it replaces an older one."""

    def get(self, blob_id: str) -> bytes:
        """Return a blob's data key.

        Raises:
            GoneError: it was destroyed, or never existed.
            KeyStoreError: it exists and cannot be unwrapped.
        """

    def holds(self, blob_id: str) -> bool:
        """Return whether a blob's data key exists."""

    def destroy(self, blob_id: str) -> None:
        """Destroy a blob's data key; a missing one is not an error."""

    def blob_ids(self) -> Iterator[str]:
        """Yield the blobs with data keys."""

    def rotate(self) -> int:
        """Begin a new period now; return how many data keys were rewrapped.

        On return, every KEK but the new one is destroyed. The next rotation first finishes an
        interrupted one.
        """

    def require_usable(self) -> None:
        """Check that keys can be read and created now.

        Raises:
            KeyStoreError, KeyServiceError: they cannot.
        """

    def is_rotation_due(self, period_s: float) -> bool:
        """Return whether the current period is ``period_s`` old or a rotation was interrupted."""

"""The store of the objects' keys: separate from the database, its log and its backups.

Each object has a data key. The store keeps it wrapped by the key-encryption key (KEK) of the
present period. When a period ends, the remaining data keys are wrapped under a new KEK and the old
one is destroyed: older copies of wrapped keys then open nothing any more. A key management service
can be used by implementing ``KeyStore`` over it: its symmetric keys are the KEKs, scheduled for
deletion when their period is over.
"""

from collections.abc import Iterator
from typing import Protocol


class KeyStore(Protocol):
    """Data keys by blob. Any number of processes use one store at the same time."""

    def create(self, blob_id: str) -> bytes:
        """Return a fresh random data key of 32 bytes, stored durably; it replaces an older one."""

    def get(self, blob_id: str) -> bytes:
        """Return a blob's data key.

        Raises:
            GoneError: it was destroyed, or never existed.
            KeyStoreError: it exists and cannot be unwrapped.
        """

    def holds(self, blob_id: str) -> bool:
        """Say whether a blob's data key is there."""

    def destroy(self, blob_id: str) -> None:
        """Destroy a blob's data key for good; a missing one is not an error."""

    def blob_ids(self) -> Iterator[str]:
        """Yield the blobs whose data keys are there."""

    def rotate(self) -> int:
        """Begin a new period now; return how many data keys were wrapped again.

        When this returns, every KEK but the new one is destroyed. A rotation that was cut off is
        finished by the next.
        """

    def require_usable(self) -> None:
        """Check that keys can be read and made now.

        Raises:
            KeyStoreError: they cannot.
        """

    def is_rotation_due(self, period_s: float) -> bool:
        """Say whether the present period began ``period_s`` ago, or a rotation was cut off."""

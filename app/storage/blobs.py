"""Blobs from birth to shredding, in step with the transactions that refer to them.

A blob is ``pending`` while it is written, ``live`` once a transaction adopts it, ``doomed`` when a
transaction gives it up, and ``shredded`` after its data key is gone. A crash at any point leaves
either a live blob or one that ``sweep`` will shred.

Every object is encrypted under a key of its own. Destroying the key is what shreds a blob; its
object is then a heap of random bytes, which is deleted too, as soon as the object store can.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.database import Database
from app.domain.errors import CorruptObjectError, GoneError, KeyStoreError, ObjectStoreError
from app.domain.ids import new_id
from app.domain.states import BlobState
from app.points import reach
from app.storage.encryption import HEADER_BYTES, Identity, content_size, encrypt
from app.storage.keystore import KeyStore
from app.storage.objects import ObjectStore
from app.storage.ranges import BlobRange
from app.storage.tables import BlobRow

ABANDONED_AFTER = timedelta(hours=1)
_DELETIONS_AT_ONCE = 100
_FAILURES_AT_ONCE = 3
_RETRY_AFTER_S = 30.0
_log = logging.getLogger("expunge.storage")


@dataclass(frozen=True)
class StoredBlob:
    """A blob that was written and waits to be adopted."""

    id: str
    sha256: str
    size_bytes: int


class Blobs:
    """The one way in and out of the object store and the key store."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        keys: KeyStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._objects = objects
        self._keys = keys
        self._clock = clock
        self._next_deletion = clock()

    def put(self, kind: str, content: bytes) -> StoredBlob:
        """Write a new pending blob. The caller's transaction must ``adopt`` it."""
        return self.fill(self.reserve(kind), content)

    def reserve(self, kind: str) -> str:
        """Return the id of a new pending blob that has no content yet."""
        blob_id = new_id("blob")
        with self._database.transaction() as session:
            session.add(BlobRow(id=blob_id, kind=kind, state=BlobState.PENDING))
        return blob_id

    def fill(self, blob_id: str, content: bytes) -> StoredBlob:
        """Write the content of a reserved blob, under a new key; repeating it is no harm.

        Raises:
            GoneError: it waited so long that it was given up.
            ObjectStoreError, KeyStoreError: a store does not do its work.
        """
        blob = StoredBlob(blob_id, hashlib.sha256(content).hexdigest(), len(content))
        identity = self._row(blob_id)[0]
        _reach_store("before_blob_write")
        key = self._keys.create(blob_id)
        self._objects.write(blob_id, encrypt(content, key, identity))
        _reach_store("after_blob_write")
        with self._database.transaction() as session:
            # A caller's open transaction may refer to the row: only its key is locked there.
            row = session.get_one(BlobRow, blob_id, with_for_update={"key_share": True})
            if row.state == BlobState.SHREDDED:
                self._keys.destroy(blob_id)
                row.object_deleted_at = None  # the next sweep deletes it again
            else:
                row.sha256 = blob.sha256
                row.size_bytes = blob.size_bytes
        if row.state == BlobState.SHREDDED:
            raise GoneError("the stored object was given up; it must be written again")
        return blob

    def adopt(self, session: Session, blob_id: str) -> None:
        """Make a pending blob live within the caller's transaction.

        Raises:
            GoneError: it waited so long that it was given up.
        """
        row = session.get_one(BlobRow, blob_id, with_for_update=True)
        if row.state != BlobState.PENDING:
            raise GoneError(f"the stored object is {row.state}; it must be written again")
        row.state = BlobState.LIVE

    def doom(self, session: Session, blob_id: str) -> None:
        """Give a blob up within the caller's transaction; ``sweep`` shreds it afterwards."""
        session.get_one(BlobRow, blob_id, with_for_update=True).state = BlobState.DOOMED

    def abandon(self, blob_id: str) -> None:
        """Give a blob up that no transaction has adopted; one that was adopted stays."""
        with self._database.transaction() as session:
            row = session.get_one(BlobRow, blob_id, with_for_update=True)
            if row.state == BlobState.PENDING:
                row.state = BlobState.DOOMED

    def open_range(self, blob_id: str, start: int, stop: int) -> BlobRange:
        """Read bytes ``start`` up to, not including, ``stop``, in chunks of bounded size.

        Each chunk is verified before it is handed out, and may raise what this method raises.

        Raises:
            GoneError: the blob was shredded.
            CorruptObjectError: the object is not what was stored.
            ObjectStoreError, KeyStoreError: a store does not do its work.
        """
        identity, size = self._stored(blob_id)
        return BlobRange(self._objects, self._keys, identity, size, range(start, stop))

    def read(self, blob_id: str) -> bytes:
        """Return a whole blob; raises what ``open_range`` raises."""
        _reach_store("before_blob_read")
        identity, size = self._stored(blob_id)
        return BlobRange(self._objects, self._keys, identity, size, range(size)).read_all()

    def sweep(self) -> int:
        """Shred every doomed or abandoned blob; return how many.

        The keys go first, and their destruction is noted at once. An object that cannot be deleted
        then is deleted by a later sweep.

        Raises:
            KeyStoreError: a key cannot be destroyed; the others were.
        """
        shredded, failure = 0, None
        for blob_id in self._doomed():
            reach("before_shred")
            try:
                self._keys.destroy(blob_id)
            except KeyStoreError as error:
                failure = error
                continue
            reach("after_shred")
            self._note_shredded(blob_id)
            shredded += 1
        self._delete_objects()
        if failure is not None:
            raise failure
        return shredded

    def rotate_keys(self, period_s: float) -> int | None:
        """Rotate the keys' key if its period is over; return how many data keys live on, or None.

        Raises:
            KeyStoreError: a key cannot be wrapped anew; the old key lives until it can.
        """
        return self._keys.rotate() if self._keys.is_rotation_due(period_s) else None

    def is_readable(self, blob_id: str) -> bool:
        """Say whether a blob's key is there and its object has the right length.

        Raises:
            ObjectStoreError: the object store does not answer.
        """
        try:
            self.open_range(blob_id, 0, 0).close()
        except (GoneError, KeyStoreError, CorruptObjectError):
            return False
        return True

    def strays(self, session: Session) -> set[str]:
        """Return the blobs whose keys are there and of which the ledger knows nothing.

        A blob's row comes before its key and outlives it. So there are none unless the ledger was
        restored from a time before they were made.
        """
        return set(self._keys.blob_ids()) - set(session.scalars(select(BlobRow.id)))

    def read_stray(self, blob_id: str, kind: str) -> bytes | None:
        """Return the content of a stray blob, or None if it is not of this kind or unreadable."""
        try:
            header = self._objects.open_range(blob_id, 0, HEADER_BYTES)
            size = content_size(header.object_size)
            header.close()
            if size is None:
                return None
            identity = Identity(blob_id, kind)
            return BlobRange(self._objects, self._keys, identity, size, range(size)).read_all()
        except (GoneError, KeyStoreError, CorruptObjectError):
            return None

    def take_in(self, session: Session, blob_id: str, kind: str, content: bytes) -> None:
        """Make a stray blob of this kind and content a live one within the caller's transaction."""
        session.add(
            BlobRow(
                id=blob_id,
                kind=kind,
                state=BlobState.LIVE,
                sha256=hashlib.sha256(content).hexdigest(),
                size_bytes=len(content),
            )
        )
        session.flush()

    def shred_stray(self, blob_id: str) -> None:
        """Destroy the key of a blob of which the ledger knows nothing, and delete its object.

        Raises:
            ObjectStoreError, KeyStoreError: a store does not do its work.
        """
        self._keys.destroy(blob_id)
        self._objects.delete(blob_id)

    def require_keys(self) -> None:
        """Check that the key store does its work; ``KeyStoreError`` if it does not."""
        self._keys.require_usable()

    def _stored(self, blob_id: str) -> tuple[Identity, int]:
        identity, size = self._row(blob_id)
        if size is None:
            raise GoneError("the stored object was shredded, or never written")
        return identity, size

    def _row(self, blob_id: str) -> tuple[Identity, int | None]:
        """Return what a blob is and the size of its content, None if there is none (any more)."""
        with self._database.transaction() as session:
            row = session.get(BlobRow, blob_id)
        if row is None:
            raise GoneError("there is no such stored object")
        size = None if row.state == BlobState.SHREDDED else row.size_bytes
        return Identity(blob_id, row.kind), size

    def _doomed(self) -> list[str]:
        with self._database.transaction() as session:
            session.execute(
                update(BlobRow)
                .where(
                    BlobRow.state == BlobState.PENDING,
                    BlobRow.created_at < func.now() - ABANDONED_AFTER,
                )
                .values(state=BlobState.DOOMED)
            )
            query = select(BlobRow.id).where(BlobRow.state == BlobState.DOOMED)
            return list(session.scalars(query))

    def _note_shredded(self, blob_id: str) -> None:
        with self._database.transaction() as session:
            row = session.get_one(BlobRow, blob_id)
            row.state = BlobState.SHREDDED
            row.sha256 = None
            row.shredded_at = func.now()

    def _delete_objects(self) -> None:
        """Delete objects whose keys are gone; while the store fails, try again every 30 s."""
        if self._clock() < self._next_deletion:
            return
        failures = 0
        for blob_id in self._objects_left():
            try:
                self._objects.delete(blob_id)
            except ObjectStoreError as error:
                failures += 1
                if failures == _FAILURES_AT_ONCE:
                    break
                _log.warning("an object whose key is gone has to wait: %s", error)
                continue
            with self._database.transaction() as session:
                session.get_one(BlobRow, blob_id).object_deleted_at = func.now()
        if failures:
            self._next_deletion = self._clock() + _RETRY_AFTER_S

    def _objects_left(self) -> list[str]:
        """Return some of the shredded blobs whose objects are still stored, in no fixed order."""
        query = (
            select(BlobRow.id)
            .where(BlobRow.state == BlobState.SHREDDED, BlobRow.object_deleted_at.is_(None))
            .order_by(func.random())
            .limit(_DELETIONS_AT_ONCE)
        )
        with self._database.transaction() as session:
            return list(session.scalars(query))


def _reach_store(point: str) -> None:
    """Come to a point where what goes wrong is the object store's fault."""
    try:
        reach(point)
    except OSError as error:
        raise ObjectStoreError(
            f"the object store does not answer: {type(error).__name__}"
        ) from error

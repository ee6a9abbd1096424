"""Blobs from birth to shredding, in step with the transactions that refer to them.

A blob is ``pending`` while it is written, ``live`` once a transaction adopts it, ``doomed`` when a
transaction gives it up, and ``shredded`` after its bytes are gone. A crash at any point leaves
either a live blob or one that ``sweep`` will shred.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.database import Database
from app.domain.errors import GoneError
from app.domain.ids import new_id
from app.domain.states import BlobState
from app.points import reach
from app.storage.objects import ObjectRange, ObjectStore
from app.storage.tables import BlobRow

_ABANDONED_AFTER = timedelta(hours=1)


@dataclass(frozen=True)
class StoredBlob:
    """A blob that was written and waits to be adopted."""

    id: str
    sha256: str
    size_bytes: int


class Blobs:
    """The one way in and out of the object store."""

    def __init__(self, database: Database, objects: ObjectStore) -> None:
        self._database = database
        self._objects = objects

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
        """Write the content of a reserved blob."""
        blob = StoredBlob(blob_id, hashlib.sha256(content).hexdigest(), len(content))
        reach("before_blob_write")
        self._objects.write(blob_id, content)
        reach("after_blob_write")
        with self._database.transaction() as session:
            row = session.get_one(BlobRow, blob_id)
            row.sha256 = blob.sha256
            row.size_bytes = blob.size_bytes
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

    def open_range(self, blob_id: str, start: int, stop: int) -> ObjectRange:
        """Read bytes ``start`` up to, not including, ``stop``, in chunks of bounded size.

        Raises:
            GoneError: the blob was shredded; a chunk raises it too, if that happens meanwhile.
        """
        return self._objects.open_range(blob_id, start, stop)

    def read(self, blob_id: str) -> bytes:
        """Return a whole blob; ``GoneError`` if it was shredded."""
        reach("before_blob_read")
        return self._objects.read(blob_id)

    def sweep(self) -> int:
        """Shred every doomed or abandoned blob; return how many."""
        with self._database.transaction() as session:
            session.execute(
                update(BlobRow)
                .where(
                    BlobRow.state == BlobState.PENDING,
                    BlobRow.created_at < func.now() - _ABANDONED_AFTER,
                )
                .values(state=BlobState.DOOMED)
            )
            doomed = list(
                session.scalars(select(BlobRow.id).where(BlobRow.state == BlobState.DOOMED))
            )
        for blob_id in doomed:
            reach("before_shred")
            self._objects.delete(blob_id)
            reach("after_shred")
            with self._database.transaction() as session:
                row = session.get_one(BlobRow, blob_id)
                row.state = BlobState.SHREDDED
                row.sha256 = None
                row.shredded_at = func.now()
        return len(doomed)

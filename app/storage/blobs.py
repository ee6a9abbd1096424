"""The life cycle of blobs, in step with the transactions that refer to them.

A blob is ``pending`` while it is written, ``live`` once a transaction adopts it, ``doomed`` when it
is given up, and ``shredded`` once its data key is destroyed. Its row is committed before anything
is written, so its object can be found even if the writer dies.

When a pending blob is given up depends on its writer:

* a transaction locks the row until it ends: by commit, failure, or Postgres' idle timeout. The next
  sweep gives up pending blobs that are not locked;
* a run writes across transactions, so its blobs name it. They are given up with the attempt.

A writer that was suspended meanwhile finds its blob given up, or its transaction ended, and keeps
nothing: a key is created before the row is checked again, and an object is written after that. So
a sweep sees, or later destroys, every key that an object was ever written under.

Every object is encrypted under its own key. Destroying the key shreds the blob. Its object is then
random bytes, which are deleted as soon as the object store can.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from app.domain.errors import CorruptObjectError, GoneError, KeyStoreError, ObjectStoreError
from app.domain.ids import new_id
from app.domain.states import BlobState
from app.runtime.database import Database
from app.runtime.failpoints import reach
from app.storage import encryption
from app.storage.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    Content,
    Identity,
    content_size,
    encrypt,
)
from app.storage.file_keys import FileKeyStore
from app.storage.objects import ObjectReader, ObjectStore
from app.storage.sweeping import Sweeper
from app.storage.tables import BlobRow


class BlobRange:
    """The bytes of a part of a blob, chunk by chunk.

    If the blob is shredded meanwhile, the next chunk raises ``GoneError`` although this object
    still has the key.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: FileKeyStore,
        identity: encryption.Identity,
        size: int,
        part: range,
    ) -> None:
        """Open bytes ``part.start`` up to ``part.stop`` of content of ``size`` bytes."""
        self._keys = keys
        self._blob_id = identity.blob_id
        self._position, self._stop = part.start, part.stop
        self.size = len(part)
        header = _header(objects, self._blob_id, expected_size=encryption.stored_size(size))
        self._chunks = encryption.Chunks(header, keys.get(self._blob_id), identity, size)
        first, last = (
            part.start // encryption.CHUNK_BYTES,
            max(part.start, part.stop - 1) // encryption.CHUNK_BYTES,
        )
        self._index = first
        start, stop = self._chunks.place(first)[0], self._chunks.place(last)[1]
        self._reader: ObjectReader | None = None
        if part or size == 0:
            self._reader = objects.open_range(self._blob_id, start, stop)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._position >= self._stop or self._reader is None:
            self.close()
            raise StopIteration
        content = self._next_chunk(self._reader)
        offset = self._position - (self._index - 1) * encryption.CHUNK_BYTES
        wanted = content[offset : offset + self._stop - self._position]
        self._position += len(wanted)
        return wanted

    def _next_chunk(self, reader: ObjectReader) -> bytes:
        start, stop = self._chunks.place(self._index)
        content = self._chunks.decrypt(self._index, reader.read(stop - start))
        if not self._keys.holds(self._blob_id):
            raise GoneError("the stored object was shredded")
        self._index += 1
        return content

    def read_all(self) -> bytes:
        """Return the whole part; for empty content, verify its one empty chunk."""
        try:
            if self._chunks.size == 0 and self._reader is not None:
                return self._next_chunk(self._reader)
            return b"".join(self)
        finally:
            self.close()

    def close(self) -> None:
        """Release resources; safe to repeat."""
        if self._reader is not None:
            self._reader.close()


def _header(objects: ObjectStore, name: str, *, expected_size: int) -> bytes:
    reader = objects.open_range(name, 0, encryption.HEADER_BYTES)
    try:
        if reader.object_size != expected_size:
            raise CorruptObjectError(
                f"object {name} has {reader.object_size} bytes, not {expected_size}"
            )
        return reader.read(encryption.HEADER_BYTES)
    finally:
        reader.close()


_AWAKE_S: Final = 5.0
"""How often a transaction that waits for a write shows Postgres that it is not idle."""


Located = tuple[Identity, int]
"""What a blob is, and the size of its content."""


@dataclass(frozen=True)
class StoredBlob:
    """A written blob that waits to be adopted."""

    id: str
    sha256: str
    size_bytes: int


class Blobs:
    """The only access to the object store and the key store.

    Methods raise ``ObjectStoreError``, ``KeyStoreError`` or ``KeyServiceError`` where a store
    fails.
    """

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        keys: FileKeyStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._objects = objects
        self._keys = keys
        self._sweeper = Sweeper(database, objects, keys, clock=clock)

    def put(
        self, session: Session, kind: str, content: bytes, *, dataset_id: str | None = None
    ) -> StoredBlob:
        """Write a new pending blob, which the caller's transaction must ``adopt``."""
        blob_id = self.reserve(session, kind, dataset_id=dataset_id)
        return self.fill(blob_id, content, session=session)

    def reserve(self, session: Session, kind: str, *, dataset_id: str | None = None) -> str:
        """Return the id of a new pending blob without content, locked by the caller's transaction.

        Its row outlives the transaction. Its content may reveal records of the dataset.
        """
        while True:
            blob_id = new_id("blob")
            with self._database.beside() as own:
                row = BlobRow(id=blob_id, kind=kind, state=BlobState.PENDING, dataset_id=dataset_id)
                own.add(row)
            if _lock_pending(session, blob_id) is not None:
                return blob_id
            # A sweep gave it up in between; nothing was written yet.

    def fill(
        self,
        blob_id: str,
        content: Content,
        *,
        session: Session | None = None,
        is_noted: bool = True,
    ) -> StoredBlob:
        """Write the content of a reserved blob under a new key; safe to repeat.

        ``session`` is the transaction that reserved it; None for a run's blob. One that is not
        ``is_noted`` cannot be read before ``adopt`` has noted what it is.
        """
        blob = _described(blob_id, content)

        def step() -> AbstractContextManager[Session]:
            return self._database.transaction() if session is None else nullcontext(session)

        _reach_store("before_blob_write")
        try:
            key = self._keys.create(blob_id)
            with self._database.at_once() if session is None else nullcontext(session) as current:
                kind = _require_pending(current, blob_id)
            parts = encrypt(content, key, Identity(blob_id, kind))
            self._objects.write(blob_id, parts if session is None else _awake(parts, session))
            _reach_store("after_blob_write")
            if is_noted:
                with step() as current:
                    _require_pending(current, blob_id)
                    _note_content(current, blob)
        except Exception:
            self._take_back(blob_id)
            raise
        return blob

    @contextmanager
    def filling(
        self, session: Session, blob_id: str, content: Callable[[], bytes]
    ) -> Iterator[None]:
        """Write a reserved blob on a thread while the block works in the same transaction.

        The transaction is the one that reserved it; ``content`` makes the content, on the thread.
        """

        def write() -> StoredBlob:
            made = content()
            self._objects.write(blob_id, encrypt(made, key, Identity(blob_id, kind)))
            return _described(blob_id, made)

        _reach_store("before_blob_write")
        try:
            key = self._keys.create(blob_id)
            kind = _require_pending(session, blob_id)
            with ThreadPoolExecutor(1, thread_name_prefix="blob") as writer:
                writing = writer.submit(write)
                yield
                while not wait([writing], _AWAKE_S).done:
                    _stay_awake(session)
                blob = writing.result()
            _reach_store("after_blob_write")
            _require_pending(session, blob_id)
            _note_content(session, blob)
        except Exception:
            self._take_back(blob_id)
            raise

    def _take_back(self, blob_id: str) -> None:
        """Remove what a failed write left behind, whatever its blob's state."""
        self._keys.destroy(blob_id)
        shredded = BlobRow.state == BlobState.SHREDDED
        with self._database.beside() as session:  # the next sweep deletes the object again
            again = update(BlobRow).where(BlobRow.id == blob_id, shredded)
            session.execute(again.values(object_deleted_at=None))

    def open_range(self, blob_id: str, start: int, stop: int) -> BlobRange:
        """Read bytes ``start`` up to, not including, ``stop``, in chunks of bounded size.

        Each chunk is verified before it is returned, so iterating may raise the same errors.
        """
        identity, size = self._stored(blob_id)
        return BlobRange(self._objects, self._keys, identity, size, range(start, stop))

    def open(self, blob: str | Located) -> BlobRange:
        """Read a whole blob, given by its id or as it was located; as ``open_range``."""
        _reach_store("before_blob_read")
        identity, size = self._stored(blob) if isinstance(blob, str) else blob
        return BlobRange(self._objects, self._keys, identity, size, range(size))

    def read(self, blob: str | Located) -> bytes:
        """Return a whole blob; raises what ``open_range`` raises."""
        return self.open(blob).read_all()

    def encrypt_beside(self, blob_id: str, kind: str, content: bytes) -> bytes:
        """Return a short content encrypted under a written blob's key, which shreds both."""
        return b"".join(encrypt(content, self._keys.get(blob_id), Identity(blob_id, kind)))

    def decrypt_beside(self, blob_id: str, kind: str, stored: bytes) -> bytes:
        """Return what ``encrypt_beside`` encrypted; raises what ``open_range`` raises."""
        size = content_size(len(stored))
        if size is None:
            raise CorruptObjectError(f"what is stored beside object {blob_id} was cut")
        header, identity = stored[:HEADER_BYTES], Identity(blob_id, kind)
        chunks = encryption.Chunks(header, self._keys.get(blob_id), identity, size)
        places = (chunks.place(index) for index in range(chunks.count))
        return b"".join(
            chunks.decrypt(index, stored[start:stop]) for index, (start, stop) in enumerate(places)
        )

    def sweep(self, dataset_id: str | None = None) -> int:
        """Shred all blobs that were given up, or those of one dataset; return how many.

        On return, the keys of all blobs that were given up before the call are destroyed, including
        those that another sweep is working on. A later sweep deletes objects that cannot be deleted
        now.

        Raises:
            KeyStoreError: a key cannot be destroyed; the others were.
        """
        return self._sweeper.sweep(dataset_id)

    def rotate_keys(self, period_s: float) -> int | None:
        """Rotate the KEK if its period is over; return how many data keys remain, or None.

        Raises:
            KeyStoreError, KeyServiceError: a key cannot be rewrapped; the old KEK is kept until
                it can.
        """
        return self._keys.rotate() if self._keys.is_rotation_due(period_s) else None

    def is_readable(self, blob_id: str) -> bool:
        """Return whether a blob's key exists and its object has the right length.

        Raises:
            ObjectStoreError, KeyServiceError: it cannot be told now.
        """
        try:
            self.open_range(blob_id, 0, 0).close()
        except (GoneError, KeyStoreError, CorruptObjectError):
            return False
        return True

    def orphans(self, session: Session) -> set[str]:
        """Return the blobs whose keys exist and that the ledger does not know.

        A blob's row is created before its key and outlives it. So there are orphans only if the
        ledger was restored from an earlier backup.
        """
        return set(self._keys.blob_ids()) - set(session.scalars(select(BlobRow.id)))

    def read_orphan(self, blob_id: str, kind: str) -> bytes | None:
        """Return an orphaned blob's content, or None if it is of another kind or unreadable."""
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

    def take_in(
        self, session: Session, blob_id: str, kind: str, content: bytes, *, dataset_id: str
    ) -> None:
        """Adopt an orphaned blob of this kind and content within the caller's transaction."""
        session.add(
            BlobRow(
                id=blob_id,
                kind=kind,
                state=BlobState.LIVE,
                dataset_id=dataset_id,
                sha256=hashlib.sha256(content).hexdigest(),
                size_bytes=len(content),
            )
        )
        session.flush()

    def shred_orphan(self, blob_id: str) -> None:
        """Destroy the key of a blob that the ledger does not know, and delete its object."""
        self._keys.destroy(blob_id)
        self._objects.delete(blob_id)

    def require_keys(self) -> None:
        """Raise ``KeyStoreError`` or ``KeyServiceError`` unless the key store works."""
        self._keys.require_usable()

    def _stored(self, blob_id: str) -> tuple[Identity, int]:
        with self._database.beside() as session:
            return locate(session, blob_id)


def locate(session: Session, blob_id: str) -> Located:
    """Return what a blob is, and its size; raise ``GoneError`` if it has no content."""
    row = session.get(BlobRow, blob_id)
    if row is None:
        raise GoneError("this stored object does not exist")
    if row.state == BlobState.SHREDDED or row.size_bytes is None:
        raise GoneError("the stored object was shredded, or never written")
    return Identity(blob_id, row.kind), row.size_bytes


def reserve_for_run(session: Session, kind: str, *, run_id: str, dataset_id: str) -> str:
    """Return the id of a new pending blob of a run, within the caller's transaction.

    The transaction must hold the run's lock and have checked that the attempt is current.
    """
    blob_id = new_id("blob")
    row = BlobRow(id=blob_id, kind=kind, state=BlobState.PENDING, dataset_id=dataset_id)
    row.run_id = run_id
    session.add(row)
    session.flush()
    return blob_id


def adopt(session: Session, blob: str | StoredBlob) -> None:
    """Make a pending blob live within the transaction; ``GoneError`` if it was given up.

    What was written is noted where it is given.
    """
    blob_id = blob if isinstance(blob, str) else blob.id
    row = session.get_one(BlobRow, blob_id, with_for_update=True)
    if row.state != BlobState.PENDING:
        raise GoneError(f"the stored object is {row.state}; it must be written again")
    row.state = BlobState.LIVE
    if isinstance(blob, StoredBlob):
        row.sha256, row.size_bytes = blob.sha256, blob.size_bytes


def doom(session: Session, blob_id: str | None) -> None:
    """Give a blob up, if there is one, in the caller's transaction; a ``sweep`` shreds it."""
    if blob_id is not None:
        mine = update(BlobRow).where(BlobRow.id == blob_id)
        session.execute(mine.values(state=BlobState.DOOMED))


def doom_attempt(session: Session, run_id: str) -> None:
    """Give up what a run has written and not adopted, within the caller's transaction.

    The transaction must hold the run's lock.
    """
    mine = update(BlobRow).where(BlobRow.run_id == run_id, BlobRow.state == BlobState.PENDING)
    session.execute(mine.values(state=BlobState.DOOMED))


def is_being_written(session: Session, dataset_id: str, *, since: datetime) -> bool:
    """Return whether a writer that began before ``since`` is still active."""
    query = select(BlobRow.id).where(
        BlobRow.dataset_id == dataset_id,
        BlobRow.state == BlobState.PENDING,
        BlobRow.created_at < since,
    )
    return session.scalar(query.limit(1)) is not None


def _lock_pending(session: Session | Connection, blob_id: str) -> str | None:
    """Lock a pending blob's row; return its kind, or None if it is no longer pending."""
    pending = select(BlobRow.kind).where(BlobRow.id == blob_id, BlobRow.state == BlobState.PENDING)
    return session.scalar(pending.with_for_update())


def _require_pending(session: Session | Connection, blob_id: str) -> str:
    kind = _lock_pending(session, blob_id)
    if kind is None:
        raise GoneError("the stored object was given up; it must be written again")
    return kind


def _note_content(session: Session, blob: StoredBlob) -> None:
    session.execute(
        update(BlobRow)
        .where(BlobRow.id == blob.id)
        .values(sha256=blob.sha256, size_bytes=blob.size_bytes)
    )


def _awake(parts: Iterable[bytes], session: Session) -> Iterator[bytes]:
    """Yield the parts, and show Postgres with each that the transaction is not idle."""
    for part in parts:
        _stay_awake(session)
        yield part


def _stay_awake(session: Session) -> None:
    session.connection().exec_driver_sql("SELECT 1")


def _described(blob_id: str, content: Content) -> StoredBlob:
    digest = hashlib.sha256()
    for start in range(0, len(content), CHUNK_BYTES):
        digest.update(content[start : start + CHUNK_BYTES])
    return StoredBlob(blob_id, digest.hexdigest(), len(content))


def _reach_store(point: str) -> None:
    """Pass a failpoint whose errors count as the object store's."""
    try:
        reach(point)
    except OSError as error:
        raise ObjectStoreError(
            f"the object store does not answer: {type(error).__name__}"
        ) from error

"""Reads a part of an encrypted object: only the chunks it needs, each verified before use.

Memory use is one chunk, whatever the size of the part.
"""

from collections.abc import Iterator

from app.domain.errors import CorruptObjectError, GoneError
from app.storage import encryption
from app.storage.file_keys import FileKeyStore
from app.storage.objects import ObjectReader, ObjectStore


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

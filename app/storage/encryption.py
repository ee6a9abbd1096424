"""The format of stored objects: AES-256-GCM chunks that cannot be cut, moved or exchanged.

An object is a header of 16 bytes, followed by its content in chunks of 64 KiB, each with a tag of
16 bytes. Only the last chunk may be shorter; it is empty only if the whole content is. This is the
STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár (CRYPTO 2015). A chunk's nonce is
``prefix (7 bytes) || index (4) || last (1)``, so no chunk is accepted at another index, and only
the last one at the end. Its associated data names the header, the blob, its kind and the index, so
no chunk is accepted in another object.

The header holds a name, the format version and the random nonce prefix: nothing secret. Every
object has its own key; the random prefix protects even a key used twice.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.domain.errors import CorruptObjectError


class Content(Protocol):
    """What is stored: bytes are it, and so is what makes them a piece at a time."""

    def __len__(self) -> int:
        """Return how many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Return some of them; the slice has no step."""


KEY_BYTES = 32
CHUNK_BYTES = 64 * 1024
TAG_BYTES = 16
_NAME = b"expunge\0"
_VERSION = 1
_HEADER = struct.Struct(">8sB7s")
_PREFIX_BYTES = 7
HEADER_BYTES = _HEADER.size
_STORED_CHUNK_BYTES = CHUNK_BYTES + TAG_BYTES
_MOST_CHUNKS = 2**32


@dataclass(frozen=True)
class Identity:
    """What an object is; it does not decrypt as anything else."""

    blob_id: str
    kind: str


def encrypt(content: Content, key: bytes, identity: Identity) -> Iterator[bytes]:
    """Yield the stored object of ``content``, part by part; ``key`` has 32 bytes."""
    header = _HEADER.pack(_NAME, _VERSION, os.urandom(_PREFIX_BYTES))
    chunks = Chunks(header, key, identity, len(content))
    yield header
    for index in range(chunks.count):
        yield chunks.encrypt(index, content[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])


def stored_size(size: int) -> int:
    """Return the stored size of a content of ``size`` bytes."""
    return HEADER_BYTES + size + TAG_BYTES * _chunk_count(size)


def content_size(stored: int) -> int | None:
    """Return the content size of an object of ``stored`` bytes; None if that is impossible."""
    chunks = -(-(stored - HEADER_BYTES) // _STORED_CHUNK_BYTES)
    size = stored - HEADER_BYTES - TAG_BYTES * chunks
    return size if size >= 0 and stored_size(size) == stored else None


class Chunks:
    """Encrypts and decrypts single chunks of one object, whose content has ``size`` bytes."""

    def __init__(self, header: bytes, key: bytes, identity: Identity, size: int) -> None:
        """Begin with an object's header; ``CorruptObjectError`` if it is of another format."""
        if len(header) != HEADER_BYTES or _HEADER.unpack(header)[:2] != (_NAME, _VERSION):
            raise CorruptObjectError(f"object {identity.blob_id} has no header of this format")
        self.size = size
        self.count = _chunk_count(size)
        self._blob_id = identity.blob_id
        self._prefix: bytes = _HEADER.unpack(header)[2]
        self._context = header + f"{identity.blob_id}\0{identity.kind}\0".encode()
        self._cipher = AESGCM(key)

    def place(self, index: int) -> tuple[int, int]:
        """Return the start and end of chunk ``index`` in the stored object."""
        start = HEADER_BYTES + index * _STORED_CHUNK_BYTES
        return start, start + min(CHUNK_BYTES, self.size - index * CHUNK_BYTES) + TAG_BYTES

    def encrypt(self, index: int, content: bytes) -> bytes:
        """Return what is stored of the content of chunk ``index``."""
        return self._cipher.encrypt(self._nonce(index), content, self._associated(index))

    def decrypt(self, index: int, stored: bytes) -> bytes:
        """Return the content of chunk ``index``; ``CorruptObjectError`` if it is forged."""
        try:
            return self._cipher.decrypt(self._nonce(index), stored, self._associated(index))
        except InvalidTag:
            raise CorruptObjectError(
                f"object {self._blob_id} is not what was stored: chunk {index} is forged"
            ) from None

    def _nonce(self, index: int) -> bytes:
        is_last = index == self.count - 1
        return self._prefix + index.to_bytes(4, "big") + is_last.to_bytes(1, "big")

    def _associated(self, index: int) -> bytes:
        return self._context + index.to_bytes(8, "big")


def _chunk_count(size: int) -> int:
    count = max(1, -(-size // CHUNK_BYTES))
    if count > _MOST_CHUNKS:
        raise ValueError("the content has more chunks than there are nonces")
    return count

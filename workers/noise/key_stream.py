"""Unpredictable random words: the AES-256-CTR key stream under a key from the OS.

Noise is made from a ``KeyStream`` on any device. Where a device cannot compute one for itself
(``device_key_stream``), this one is copied there.
"""

import os
from typing import Final, Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from app.domain.errors import SealedStateError

KEY_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 17  # encrypted at a time; other threads run in between
_BYTES_OF_A_KEY: Final = 1 << 35  # GCM ends at 2^36 - 32
_BLOCK_WORDS: Final = 1 << 20


class KeyStream(Protocol):
    """Independent uniform 64-bit words, each returned only once."""

    @property
    def name(self) -> str:
        """The cipher's name, as in certificates."""

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words``, a contiguous 1-D int64 tensor, with the next words of the stream.

        Raises:
            SealedStateError: the stream was destroyed.
        """

    def destroy(self) -> None:
        """Drop the key and overwrite all stored words; safe to repeat."""


def fresh_key() -> bytearray:
    """Return 256 bits from the operating system's generator."""
    return bytearray(os.urandom(KEY_BYTES))


class AesKeyStream:
    """The AES-256-CTR key stream in CPU memory; its key is overwritten here.

    It is what GCM adds to zeros: the encryption of the counters from 2 on, in the last 32 of 128
    bits (NIST SP 800-38D, section 7.1). OpenSSL computes it twice as fast under this name, where a
    processor encrypts four blocks at once. Before those 32 bits are used up, the stream's next
    words become its key.
    """

    __slots__ = ("_cipher", "_left", "_zeros")

    name: Final = "aes-256-ctr"

    def __init__(self, key: bytearray) -> None:
        self._zeros = memoryview(bytes(_PIECE_BYTES))
        self._cipher: CipherContext | None = None
        self._use(key)

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words`` with the next words of the stream."""
        target = words.numpy().data.cast("B")
        start = 0
        while start < len(target):
            if self._left == 0:
                key = bytearray(KEY_BYTES)
                self._next(memoryview(key))
                self._use(key)
            piece = target[start : start + min(_PIECE_BYTES, self._left)]
            self._next(piece)
            self._left -= len(piece)
            start += len(piece)

    def destroy(self) -> None:
        """Drop the cipher; OpenSSL overwrites its key schedule when freeing it."""
        self._cipher = None

    def _next(self, piece: memoryview) -> None:
        if self._cipher is None:
            raise SealedStateError("this noise source was destroyed")
        self._cipher.update_into(self._zeros[: len(piece)], piece)

    def _use(self, key: bytearray) -> None:
        self._cipher = Cipher(algorithms.AES256(key), modes.GCM(bytes(12))).encryptor()
        self._left = _BYTES_OF_A_KEY
        key[:] = bytes(len(key))


class CopiedKeyStream:
    """Words of ``source``, which it owns from now on, for tensors in another device's memory.

    They are made in one block of CPU memory, page-locked where there is CUDA, which a copy has left
    before it is filled again.
    """

    __slots__ = ("_block", "_source")

    def __init__(self, source: KeyStream, *, block_words: int = _BLOCK_WORDS) -> None:
        self._source = source
        pinned = torch.cuda.is_available()
        self._block = torch.zeros(block_words, dtype=torch.int64, pin_memory=pinned)

    @property
    def name(self) -> str:
        """The source's cipher."""
        return self._source.name

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words`` with the next words of the source."""
        for part in torch.split(words, len(self._block)):
            made = self._block[: len(part)]
            self._source.fill_(made)
            part.copy_(made)

    def destroy(self) -> None:
        """Drop the key and overwrite the block; safe to repeat."""
        self._source.destroy()
        self._block.zero_()

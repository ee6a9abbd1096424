"""Unpredictable random words: the AES-256-CTR key stream under a key from the OS.

Noise is made from a ``KeyStream`` on any device. A kernel that computes the cipher on an
accelerator could replace ``key_stream_ahead`` with the same three methods.
"""

import os
from typing import Final, Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from app.domain.errors import SealedStateError

KEY_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 17  # encrypted at a time; other threads run in between


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
    """The AES-256-CTR key stream in CPU memory; its key is overwritten here."""

    __slots__ = ("_cipher", "_zeros")

    name: Final = "aes-256-ctr"

    def __init__(self, key: bytearray) -> None:
        self._cipher: CipherContext | None = Cipher(
            algorithms.AES256(key), modes.CTR(bytes(16))
        ).encryptor()
        self._zeros = memoryview(bytes(_PIECE_BYTES))
        key[:] = bytes(len(key))

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words`` with the next words of the stream."""
        cipher = self._cipher
        if cipher is None:
            raise SealedStateError("this noise source was destroyed")
        target = words.numpy().data.cast("B")
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            cipher.update_into(self._zeros[: len(piece)], piece)

    def destroy(self) -> None:
        """Drop the cipher; OpenSSL overwrites its key schedule when freeing it."""
        self._cipher = None

"""Unpredictable random words: the AES-256-CTR key stream under a key from the OS.

``KeyStream`` is what noise is made from, on whatever device. A kernel that computes the cipher on
an accelerator can take the place of ``key_stream_ahead`` behind the same three methods.
"""

import os
from typing import Final, Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from app.domain.errors import SealedStateError

KEY_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 17  # encrypted at a time; other threads run in between


class KeyStream(Protocol):
    """Independent uniform 64-bit words, none of them ever given twice."""

    @property
    def name(self) -> str:
        """The cipher, as the certificate states it."""

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words``, a contiguous 1-D int64 tensor, with the next words of the stream.

        Raises:
            SealedStateError: the stream was destroyed.
        """

    def destroy(self) -> None:
        """Drop the key and overwrite all words that are kept; a second call does nothing."""


def fresh_key() -> bytearray:
    """Return 256 bits from the operating system's generator."""
    return bytearray(os.urandom(KEY_BYTES))


class AesKeyStream:
    """The AES-256-CTR key stream, into memory of the CPU.

    Args:
        key: 32 bytes that no other stream was made from. They are overwritten here.
    """

    __slots__ = ("_cipher", "_zeros")

    name: Final = "aes-256-ctr"

    def __init__(self, key: bytearray) -> None:
        self._cipher: CipherContext | None = Cipher(
            algorithms.AES256(key), modes.CTR(bytes(16))
        ).encryptor()
        self._zeros = memoryview(bytes(_PIECE_BYTES))
        key[:] = bytes(len(key))

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words`` with the next words of the stream.

        Raises:
            SealedStateError: the stream was destroyed.
        """
        cipher = self._cipher
        if cipher is None:
            raise SealedStateError("this noise source was destroyed")
        target = words.numpy().data.cast("B")
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            cipher.update_into(self._zeros[: len(piece)], piece)

    def destroy(self) -> None:
        """Drop the cipher; OpenSSL overwrites its key schedule as it frees it."""
        self._cipher = None

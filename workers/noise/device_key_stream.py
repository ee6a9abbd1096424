"""A key stream that a device computes for itself: ChaCha20 under a key from the OS.

Its words are those of ChaCha20 of RFC 8439 bit for bit, which tests compare on any machine by
Triton's interpreter, and on a GPU by its own kernel.
"""

from typing import Final

import torch

from app.domain.errors import SealedStateError
from workers.noise.chacha_kernel import fill_

_WORDS_OF_A_BLOCK: Final = 8


class DeviceKeyStream:
    """The ChaCha20 key stream in a device's memory, with its key; the last blocks are not reused.

    Creating one compiles the kernel, which writes files and starts programs: before the sealed
    phase. ``key`` is overwritten here.
    """

    __slots__ = ("_counter", "_destroyed", "_key")

    name: Final = "chacha20"

    def __init__(self, key: bytearray, device: torch.device) -> None:
        self._destroyed = False
        self._key = torch.frombuffer(key, dtype=torch.int32).to(device, copy=True)
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)
        key[:] = bytes(len(key))
        unused = torch.zeros(_WORDS_OF_A_BLOCK, dtype=torch.int64, device=device)
        self.fill_(unused)
        unused.zero_()

    def fill_(self, words: torch.Tensor) -> None:
        """Fill ``words``, on this stream's device, with the next words."""
        if self._destroyed:
            raise SealedStateError("this noise source was destroyed")
        fill_(words, self._key, self._counter)
        self._counter.add_(-(-words.numel() // _WORDS_OF_A_BLOCK))

    def destroy(self) -> None:
        """Overwrite the key; safe to repeat."""
        self._destroyed = True
        self._key.zero_()

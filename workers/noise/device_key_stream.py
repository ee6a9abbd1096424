"""A key stream that a device computes for itself: ChaCha20 under a key from the OS.

Its words are those of ChaCha20 of RFC 8439 bit for bit, which tests compare on any machine by
Triton's interpreter, and on a GPU by its own kernel: additions, exclusive ors and rotations of 32
bits. The state is as Bernstein's ("ChaCha, a variant of Salsa20", 2008): four constants, the key, a
64-bit counter of blocks, and 64 bits of nonce, all zero here. In the words of RFC 8439, section
2.3, the counter's upper half is the nonce's first word.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from app.domain.errors import SealedStateError

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


_BLOCK_WORDS = 16
_AT_ONCE = 128


def fill_(words: torch.Tensor, key: torch.Tensor, counter: torch.Tensor) -> None:
    """Fill ``words``, int64 [n], with the stream's blocks from ``counter`` on.

    Args:
        words: contiguous, at the beginning of its memory; below 2^30.
        key: int32 [8].
        counter: int64 [1]; not changed.
    """
    halves = words.view(torch.int32)
    grid = (triton.cdiv(halves.numel(), _BLOCK_WORDS * _AT_ONCE),)
    _fill[grid](halves, key, counter, halves.numel(), _AT_ONCE)


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _word(key, index, like):
    return tl.load(key + index).to(tl.uint32, bitcast=True) + tl.zeros_like(like)


# Not specialised: a kernel compiled anew would write files, which the sealed phase refuses.
@triton.jit(do_not_specialize=["size"])
def _fill(out, key, counter, size, AT_ONCE: tl.constexpr):  # noqa: N803 - Triton's constants
    block = tl.program_id(0).to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
    number = tl.load(counter) + block
    low, high = number.to(tl.uint32), (number >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1, k2, k3 = _word(key, 0, low), _word(key, 1, low), _word(key, 2, low), _word(key, 3, low)
    k4, k5, k6, k7 = _word(key, 4, low), _word(key, 5, low), _word(key, 6, low), _word(key, 7, low)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, low, high, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    first = block * 16
    _store(out, first, size, x0 + s0, x1 + s1, x2 + s2, x3 + s3)
    _store(out, first + 4, size, x4 + k0, x5 + k1, x6 + k2, x7 + k3)
    _store(out, first + 8, size, x8 + k4, x9 + k5, x10 + k6, x11 + k7)
    _store(out, first + 12, size, x12 + low, x13 + high, x14, x15)


@triton.jit
def _store(out, at, size, a, b, c, d):
    tl.store(out + at, a.to(tl.int32, bitcast=True), mask=at < size)
    tl.store(out + at + 1, b.to(tl.int32, bitcast=True), mask=at + 1 < size)
    tl.store(out + at + 2, c.to(tl.int32, bitcast=True), mask=at + 2 < size)
    tl.store(out + at + 3, d.to(tl.int32, bitcast=True), mask=at + 3 < size)

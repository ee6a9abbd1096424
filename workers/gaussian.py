"""From uniform words to normal numbers, in float64: Box-Muller, two draws to a number.

A draw takes two words. k, the upper 53 bits of the first, gives the radius sqrt(-2 ln U) with
U = (k + 1) / 2^53, which is never 0; the upper 53 bits of the other give the angle, from -pi to pi.
Two draws (X, Y) and (X', Y') become the numbers (X + X') / sqrt(2) and (Y + Y') / sqrt(2): standard
normal and independent, as those were. An attacker who knows how floating-point numbers are spaced
would have to search the words of both draws, 212 bits, for what a single output came from (Holohan
and Braghin, "Secure random sampling in differential privacy", ESORICS 2021).

A draw ends at sqrt(2 * 53 * ln 2) = 8.57 standard deviations and a number at 12.12; the mass that a
draw lacks is 2^-53.
"""

import math
from typing import Final

import torch

from workers.key_stream import KeyStream

NAME: Final = "box-muller float64, sum of 2"
DRAWS: Final = 2
WORDS_PER_PAIR: Final = 2 * DRAWS
_UNIFORM_BITS: Final = 53


class Gaussians:
    """Turns a key stream into normal numbers on one device, in buffers that it can overwrite.

    Args:
        stream: gives the words; owned by this object from now on.
        device: where the numbers are made.
        pairs: how many pairs of numbers are made at a time.
    """

    __slots__ = ("_cosine", "_stream", "_uniform", "_words")

    def __init__(self, stream: KeyStream, device: torch.device, *, pairs: int) -> None:
        self._stream = stream
        self._words = torch.zeros(WORDS_PER_PAIR * pairs, dtype=torch.int64, device=device)
        self._uniform = torch.zeros(WORDS_PER_PAIR * pairs, dtype=torch.float64, device=device)
        self._cosine = torch.zeros(DRAWS * pairs, dtype=torch.float64, device=device)

    def fill_(self, out: torch.Tensor) -> None:
        """Fill ``out``, 1-D float32 or float64, with N(0, 1), rounded once to its dtype.

        Raises:
            SealedStateError: the stream was destroyed.
        """
        for chunk in torch.split(out, 2 * self._words.numel() // WORDS_PER_PAIR):
            self._fill(chunk)

    def destroy(self) -> None:
        """Destroy the stream and overwrite all buffers; a second call does nothing."""
        self._stream.destroy()
        for buffer in (self._words, self._uniform, self._cosine):
            buffer.zero_()

    def _fill(self, out: torch.Tensor) -> None:
        pairs = (out.numel() + 1) // 2
        if pairs == 0:
            return
        words = self._words[: WORDS_PER_PAIR * pairs]
        self._stream.fill_(words)
        first, second = normal_pairs_(
            words, self._uniform[: words.numel()], self._cosine[: DRAWS * pairs]
        )
        out[:pairs].copy_(first)
        out[pairs:].copy_(second[: out.numel() - pairs])


def normal_pairs_(
    words: torch.Tensor, uniform: torch.Tensor, cosine: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two vectors of independent N(0, 1), float64 [n] each, made in the given buffers.

    Args:
        words: int64 [4 n], uniform; spoilt. The radii of the first draws, those of the second, the
            angles of the first draws, those of the second.
        uniform: float64 [4 n], for scratch and the second vector.
        cosine: float64 [2 n], for scratch and the first vector.
    """
    # As signed numbers: from -2^52 to 2^52 - 1, all of them exact in float64.
    uniform.copy_(words.bitwise_right_shift_(64 - _UNIFORM_BITS))
    radius, angle = uniform.view(2, DRAWS, -1)
    radius.add_(2.0 ** (_UNIFORM_BITS - 1) + 1.0).mul_(2.0**-_UNIFORM_BITS)
    radius.log_().mul_(-2.0 / DRAWS).sqrt_()
    angle.mul_(2.0 * math.pi * 2.0**-_UNIFORM_BITS)
    cosines = torch.cos(angle, out=cosine.view(DRAWS, -1)).mul_(radius)
    sines = angle.sin_().mul_(radius)
    return cosines[0].add_(cosines[1]), sines[0].add_(sines[1])

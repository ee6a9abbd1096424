"""Box-Muller in float64: uniform words to normal numbers, two draws per number.

A draw takes two words. The lower 63 bits w of the first and the lower 11 bits e of the second give
the radius sqrt(-2 ln U) with U = (w + (e + 1/2) 2^-11) 2^-63: above 0, and with the full precision
of float64 down to 2^-75. The upper 53 bits of the second give the angle, from -pi to pi. Two draws
(X, Y) and (X', Y') become the numbers (X + X') / sqrt(2) and (Y + Y') / sqrt(2), which are standard
normal and independent, like the draws. To find the origin of a single output, an attacker who knows
the spacing of floating-point numbers would have to search the words of both draws, 254 bits
(Holohan and Braghin, "Secure random sampling in differential privacy", ESORICS 2021).

A draw ends at sqrt(2 * 75 * ln 2) = 10.20 standard deviations and a number at 14.42; the mass
missing from a draw is 2^-75.

``app.accounting.precision`` bounds the floating-point error. With u = 2^-53 it assumes:
 1. U has a relative error of at most 2u: w is rounded to float64, and so is the sum;
 2. log and sqrt are within one unit in the last place;
 3. sin and cos are within two units in the last place on [-pi, pi], and the angle is within 2 pi u;
 4. sums and products are rounded to nearest; a product may stay unrounded before an addition.
A draw of radius R is then off by at most e(R) = u (17 R + 2 / R) in each coordinate: 2 / R from the
uniform number, and of the 17 R 3 from log and sqrt, 2 pi from the angle, 4 from sin or cos, 3 from
two products and the sum of both draws. A number is off by (e(R) + e(R')) / sqrt(2). The tests
compare assumptions and bound with multi-precision arithmetic.
"""

import math
from typing import Final

import torch

from workers.noise.key_stream import KeyStream

NAME: Final = "box-muller float64, 74-bit radius, sum of 2"
DRAWS: Final = 2
WORDS_PER_PAIR: Final = 2 * DRAWS
_ANGLE_BITS: Final = 53
_SPARE_BITS: Final = 64 - _ANGLE_BITS
_RADIUS_BITS: Final = 63


class Block:
    """The memory of so many pairs: two words a draw, which become floats in their place.

    Views are made once, because making them costs as much as computing on a few thousand numbers.
    """

    __slots__ = ("angle", "angle_words", "cosine", "radius", "radius_words", "spare", "words")

    def __init__(self, words: torch.Tensor, cosine: torch.Tensor) -> None:
        """Share the memory of ``words``, int64 [4 pairs], and ``cosine``, float64 [2 pairs].

        The words are the radii of the first draws, those of the second, the angles of the first
        draws, those of the second.
        """
        self.words = words
        self.radius_words, self.angle_words = words.view(2, -1)
        self.radius, self.angle = words.view(torch.float64).view(2, -1)
        self.cosine = cosine
        self.spare = cosine.view(torch.int64)

    @property
    def pairs(self) -> int:
        """How many pairs of numbers there is room for."""
        return self.words.numel() // WORDS_PER_PAIR

    def first(self, pairs: int) -> "Block":
        """Return so many pairs of this block."""
        return Block(self.words[: WORDS_PER_PAIR * pairs], self.cosine[: DRAWS * pairs])

    def zero_(self) -> None:
        """Overwrite all of it."""
        self.words.zero_()
        self.cosine.zero_()


class Gaussians:
    """Turns a key stream, which it owns from now on, into noise on one device.

    So many pairs of numbers are computed at a time, in a reusable block.
    """

    __slots__ = ("_block", "_stream")

    def __init__(self, stream: KeyStream, device: torch.device, *, pairs: int) -> None:
        self._stream = stream
        self._block = Block(
            torch.zeros(WORDS_PER_PAIR * pairs, dtype=torch.int64, device=device),
            torch.zeros(DRAWS * pairs, dtype=torch.float64, device=device),
        )

    def add_(self, position: torch.Tensor, noise_std: float, *, grid: float) -> None:
        """Add N(0, noise_std^2) to 1-D float64 in place, and round the sums to ``grid``."""
        for chunk in torch.split(position, 2 * self._block.pairs):
            self._add(chunk, noise_std)
            round_to_(chunk, grid)

    def destroy(self) -> None:
        """Destroy the stream and overwrite all buffers; safe to repeat."""
        self._stream.destroy()
        self._block.zero_()

    def _add(self, chunk: torch.Tensor, noise_std: float) -> None:
        pairs = (chunk.numel() + 1) // 2
        if pairs == 0:
            return
        block = self._block if pairs == self._block.pairs else self._block.first(pairs)
        self._stream.fill_(block.words)
        first, second = normal_pairs_(block)
        chunk[:pairs].add_(first, alpha=noise_std)
        chunk[pairs:].add_(second[: chunk.numel() - pairs], alpha=noise_std)


def normal_pairs_(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two vectors of independent N(0, 1), float64 [pairs] each, in the block's memory.

    Its words must be uniform; they are overwritten.
    """
    radius, angle, cosine = block.radius, block.angle, block.cosine
    torch.bitwise_and(block.angle_words, (1 << _SPARE_BITS) - 1, out=block.spare)
    radius.copy_(block.radius_words.bitwise_and_((1 << _RADIUS_BITS) - 1))
    # As signed numbers: from -2^52 to 2^52 - 1, all exact in float64.
    angle.copy_(block.angle_words.bitwise_right_shift_(_SPARE_BITS))
    cosine.copy_(block.spare).add_(0.5)
    radius.add_(cosine, alpha=2.0**-_SPARE_BITS).mul_(2.0**-_RADIUS_BITS)
    radius.log_().mul_(-2.0 / DRAWS).sqrt_()
    angle.mul_(2.0 * math.pi * 2.0**-_ANGLE_BITS)
    cosines = torch.cos(angle, out=cosine).mul_(radius).view(DRAWS, -1)
    sines = angle.sin_().mul_(radius).view(DRAWS, -1)
    return cosines[0].add_(cosines[1]), sines[0].add_(sines[1])


def round_to_(position: torch.Tensor, grid: float) -> None:
    """Round float64 numbers to multiples of ``grid``, a power of two, in place; half to even.

    Zeros lose their sign, which would reveal on which side of zero a number was: 0 + -0 is 0.
    """
    zero = position.new_zeros(())
    torch.add(zero, position.mul_(1 / grid).round_(), alpha=grid, out=position)

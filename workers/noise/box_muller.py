"""Box-Muller in float64: uniform words to normal numbers, two draws per number.

A draw takes two words. The lower 63 bits w of the first and the lower 11 bits e of the second give
the radius sqrt(-2 ln U) with U = (w + (e + 1/2) 2^-11) 2^-63: above 0, and with the full precision
of float64 down to 2^-75. The upper 53 bits of the second give an angle a from -pi/2 to pi/2, and
the highest bit of the first turns it by pi: it is the radius's sign. The angle's sine and cosine
are w c and 1 - w^2 / 2, of w = 2 sin(a/2) and c = cos(a/2), which are polynomials. Two draws
(X, Y) and (X', Y') become the numbers (X + X') / sqrt(2) and (Y + Y') / sqrt(2), which are standard
normal and independent, like the draws. To find the origin of a single output, an attacker who knows
the spacing of floating-point numbers would have to search the words of both draws, 254 bits
(Holohan and Braghin, "Secure random sampling in differential privacy", ESORICS 2021).

A draw ends at sqrt(2 * 75 * ln 2) = 10.20 standard deviations and a number at 14.42; the mass
missing from a draw is 2^-75.

``app.accounting.precision`` bounds the floating-point error. With u = 2^-53 it assumes:
 1. U has a relative error of at most 2u: w is rounded to float64, and so is the sum;
 2. log and sqrt are within one unit in the last place;
 3. sums and products are rounded to nearest; a product may stay unrounded before an addition.
So the angle is within pi u, its sine within 4.8 u of itself, and its cosine within
(4.2 (1 - cosine) + 0.5) u: section 11.3 of docs/guarantees.md adds them up. A draw of radius R is
then off by at most e(R) = u (17 R + 2 / R) in each coordinate: 2 / R from the uniform number, and
of the 17 R 3 from log and sqrt, and 3 from two products and the sum of both draws. A number is off
by (e(R) + e(R')) / sqrt(2). The tests compare assumptions and bound with multi-precision
arithmetic.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import torch

from workers.noise.key_stream import KeyStream

NAME: Final = "box-muller float64, 74-bit radius, sum of 2"
DRAWS: Final = 2
WORDS_PER_PAIR: Final = 2 * DRAWS
_ANGLE_BITS: Final = 53
_SPARE_BITS: Final = 64 - _ANGLE_BITS
_RADIUS_BITS: Final = 63
_SIGN: Final = -(1 << _RADIUS_BITS)
# sin(x) / x - 1 and cos(x) - 1 by x^2 on [-pi/4, pi/4], both within 2^-57 (fdlibm, k_sin.c and
# k_cos.c). The argument is twice that, so the k-th coefficient is divided by 4^k, which is exact.
_SINE: Final = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COSINE: Final = (
    -0.5,
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)


class Block:
    """The memory of so many pairs: two words a draw, which become floats in their place.

    Views are made once, because making them costs as much as computing on a few thousand numbers.
    """

    __slots__ = (
        "angle", "angle_words", "radius", "radius_words", "scratch", "scratches", "sign", "spare",
        "square", "words",
    )  # fmt: skip

    def __init__(self, words: torch.Tensor, scratches: torch.Tensor) -> None:
        """Share the memory of ``words``, int64 [4 pairs], and ``scratches``, float64 [4 pairs].

        The words are the radii of the first draws, those of the second, the angles of the first
        draws, those of the second.
        """
        self.words = words
        self.radius_words, self.angle_words = words.view(2, -1)
        self.radius, self.angle = words.view(torch.float64).view(2, -1)
        self.scratches = scratches
        self.scratch, self.square = scratches.view(2, -1)
        self.spare, self.sign = scratches.view(torch.int64).view(2, -1)

    @property
    def pairs(self) -> int:
        """How many pairs of numbers there is room for."""
        return self.words.numel() // WORDS_PER_PAIR

    def first(self, pairs: int) -> "Block":
        """Return so many pairs of this block."""
        used = WORDS_PER_PAIR * pairs
        return Block(self.words[:used], self.scratches[:used])

    def zero_(self) -> None:
        """Overwrite all of it."""
        self.words.zero_()
        self.scratches.zero_()


class Gaussians:
    """Turns a key stream, which it owns from now on, into noise on one device.

    So many pairs of numbers are computed at a time, in a reusable block.
    """

    __slots__ = ("_block", "_stream")

    def __init__(self, stream: KeyStream, device: torch.device, *, pairs: int) -> None:
        self._stream = stream
        self._block = Block(
            torch.zeros(WORDS_PER_PAIR * pairs, dtype=torch.int64, device=device),
            torch.zeros(WORDS_PER_PAIR * pairs, dtype=torch.float64, device=device),
        )

    @torch.inference_mode()
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
    radius, angle, scratch, square = block.radius, block.angle, block.scratch, block.square
    torch.bitwise_and(block.radius_words, _SIGN, out=block.sign)
    torch.bitwise_and(block.angle_words, (1 << _SPARE_BITS) - 1, out=block.spare)
    radius.copy_(block.radius_words.bitwise_and_(~_SIGN))
    scratch.copy_(block.spare).add_(0.5)
    radius.add_(scratch, alpha=2.0**-_SPARE_BITS).mul_(2.0**-_RADIUS_BITS)
    _negative_log_root_(radius)
    block.radius_words.bitwise_xor_(block.sign)  # the radius's memory: a half turn, or none
    # As signed numbers: from -2^52 to 2^52 - 1, all exact in float64.
    angle.copy_(block.angle_words.bitwise_right_shift_(_SPARE_BITS))
    angle.mul_(math.pi * 2.0**-_ANGLE_BITS)
    torch.mul(angle, angle, out=square)
    one, sine, cosine = _constants(angle.device)
    chord = torch.addcmul(angle, angle, sine.of(square, scratch).mul_(square), out=angle)
    half = torch.addcmul(one, cosine.of(square, scratch), square, out=scratch)
    sines = half.mul_(chord).mul_(radius).view(DRAWS, -1)
    cosines = torch.addcmul(one, chord, chord, value=-0.5, out=square)
    cosines = cosines.mul_(radius).view(DRAWS, -1)
    return cosines[0].add_(cosines[1]), sines[0].add_(sines[1])


def _negative_log_root_(numbers: torch.Tensor) -> None:
    """Replace uniform numbers by sqrt(-ln U): a draw's radius over the root of DRAWS."""
    if numbers.device.type != "cpu":
        numbers.log_().mul_(-2.0 / DRAWS).sqrt_()
        return
    values = numbers.numpy()  # NumPy's logarithm is several times as fast as torch's
    np.log(values, out=values)
    np.multiply(values, -2.0 / DRAWS, out=values)
    np.sqrt(values, out=values)


@cache
def _constants(device: torch.device) -> tuple[torch.Tensor, "_Polynomial", "_Polynomial"]:
    """Return 1 and both polynomials of the square of an angle, whose half they are about."""
    sine, cosine = (
        _Polynomial([each / 4 ** (k + 1) for k, each in enumerate(row)], device)
        for row in (_SINE, _COSINE)
    )
    return torch.ones((), dtype=torch.float64, device=device), sine, cosine


class _Polynomial:
    """A polynomial by Horner's rule; its coefficients are 0-dim, from the constant one on."""

    def __init__(self, coefficients: Sequence[float], device: torch.device) -> None:
        *others, self._highest = coefficients
        self._next, *self._others = torch.tensor(
            others[::-1], dtype=torch.float64, device=device
        ).unbind()

    def of(self, argument: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.add(self._next, argument, alpha=self._highest, out=out)
        for coefficient in self._others:
            torch.addcmul(coefficient, out, argument, out=out)
        return out


def round_to_(position: torch.Tensor, grid: float) -> None:
    """Round float64 numbers to multiples of ``grid``, a power of two, in place; half to even.

    Zeros lose their sign, which would reveal on which side of zero a number was: 0 + -0 is 0.
    """
    zero = position.new_zeros(())
    torch.add(zero, position.mul_(1 / grid).round_(), alpha=grid, out=position)

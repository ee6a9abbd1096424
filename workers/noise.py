"""Gaussian noise: the only randomness that a guarantee rests on.

``SecureNoise`` is the one the service uses: a key from the operating system, an AES-256-CTR key
stream, and Box-Muller in float64. ``InsecureNoise`` repeats itself on purpose and is for tests.
"""

import math
import os
from typing import Final, NoReturn, Protocol

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from app.domain.errors import ConfigurationError, SealedStateError

_KEY_BYTES: Final = 32
_WORD_BYTES: Final = 8
_CHUNK: Final = 1 << 17  # numbers made at a time: 1 MB of key stream stays in the cache
_MANTISSA_BITS: Final = 53


class NoiseSource(Protocol):
    """A stream of independent standard normal numbers."""

    @property
    def name(self) -> str:
        """The generator, as the certificate states it."""

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out``, a 1-D float32 or float64 tensor on any device, with fresh N(0, 1)."""


class SecureNoise:
    """Normal numbers that nobody can predict or repeat.

    Each instance draws its own 256-bit key from ``os.urandom``. Every number comes from a fresh
    part of the AES-256-CTR key stream: two 64-bit words give a uniform radius in (0, 1] and a
    uniform angle, 53 bits each; Box-Muller in float64 turns them into two normal numbers, rounded
    once to ``out``'s dtype. The radius ends at sqrt(2 * 53 * ln 2) = 8.57 standard deviations; the
    mass beyond it is 2^-53 per pair.

    There is no seed, no state to read, and no copy: pickling, copying, printing values and use in a
    forked child are refused.
    """

    __slots__ = ("_process", "_stream", "_words", "_zeros")

    name: Final = "aes-256-ctr, box-muller float64"

    def __init__(self) -> None:
        key = bytearray(os.urandom(_KEY_BYTES))
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
        self._stream: CipherContext | None = cipher.encryptor()
        self._zeros = bytes(_CHUNK * _WORD_BYTES)
        self._words = bytearray(_CHUNK * _WORD_BYTES)
        self._process = os.getpid()
        key[:] = bytes(_KEY_BYTES)

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out`` with fresh N(0, 1).

        Raises:
            SealedStateError: the source was destroyed, or belongs to another process.
            ValueError: ``out`` is not a 1-D float32 or float64 tensor.
        """
        _require_vector(out)
        if self._stream is None:
            raise SealedStateError("this noise source was destroyed")
        if self._process != os.getpid():
            raise SealedStateError("a noise source serves the process that made it and no other")
        for chunk in torch.split(out, _CHUNK):
            self._fill(self._stream, chunk)

    def _fill(self, stream: CipherContext, out: torch.Tensor) -> None:
        pairs = (out.numel() + 1) // 2
        if pairs == 0:
            return
        size = 2 * pairs * _WORD_BYTES
        stream.update_into(memoryview(self._zeros)[:size], self._words)
        words = torch.frombuffer(self._words, dtype=torch.int64, count=2 * pairs)
        words.bitwise_right_shift_(64 - _MANTISSA_BITS).bitwise_and_((1 << _MANTISSA_BITS) - 1)
        # k is a whole number below 2^53: (k + 1) / 2^53 for the radius is never 0.
        uniform = words.to(out.device).to(torch.float64)
        radius, angle = uniform[:pairs], uniform[pairs:]
        radius.add_(1.0).mul_(2.0**-_MANTISSA_BITS).log_().mul_(-2.0).sqrt_()
        angle.mul_(2.0 * math.pi * 2.0**-_MANTISSA_BITS)
        out[:pairs] = torch.cos(angle).mul_(radius)
        rest = out.numel() - pairs
        out[pairs:] = angle[:rest].sin_().mul_(radius[:rest])

    def destroy(self) -> None:
        """Drop the key and overwrite the key stream; a second call does nothing."""
        self._stream = None
        self._words[:] = bytes(len(self._words))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("a noise source cannot be copied or saved")


class InsecureNoise:
    """Repeatable normal numbers, for tests alone. It protects nobody.

    Args:
        seed: fixes the whole stream.
        environment: the name of the settings' environment.

    Raises:
        ConfigurationError: ``environment`` is ``production``.
    """

    name: Final = "INSECURE repeatable test generator"

    def __init__(self, seed: int, *, environment: str) -> None:
        if environment.strip().lower() == "production":
            raise ConfigurationError("InsecureNoise refuses to run in production")
        self._generator = torch.Generator().manual_seed(seed)

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out`` with the next N(0, 1) of the stream; the stream is the same for each dtype.

        Raises:
            ValueError: ``out`` is not a 1-D float32 or float64 tensor.
        """
        _require_vector(out)
        out.copy_(torch.randn(out.numel(), generator=self._generator, dtype=torch.float64))


def _require_vector(out: torch.Tensor) -> None:
    if out.dim() != 1 or out.dtype not in (torch.float32, torch.float64):
        raise ValueError("noise fills 1-D float32 or float64 tensors")

"""Gaussian noise: the only randomness that a guarantee rests on.

``SecureNoise`` is the one the service uses: a key from the operating system, an AES-256-CTR key
stream (``workers.key_stream``), and sums of Box-Muller draws in float64 (``workers.gaussian``).
``InsecureNoise`` repeats itself on purpose and is for tests.
"""

import os
from typing import Final, NoReturn, Protocol

import torch

from app.domain.errors import ConfigurationError, SealedStateError
from workers import gaussian
from workers.gaussian import Gaussians
from workers.key_stream import AesKeyStream, fresh_key
from workers.key_stream_ahead import AheadKeyStream

# 252 KiB of words stay in a core's cache; from 2^15 words on, torch would wake its other threads.
_PAIRS_ON_CPU: Final = 8064
_PAIRS_ON_DEVICE: Final = 1 << 18


class NoiseSource(Protocol):
    """A stream of independent standard normal numbers."""

    @property
    def name(self) -> str:
        """The generator, as the certificate states it."""

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out``, a 1-D float32 or float64 tensor on any device, with fresh N(0, 1)."""


class SecureNoise:
    """Normal numbers that nobody can predict or repeat.

    Each instance draws its own 256-bit key from the operating system, one for each device that it
    serves. Every number comes from four fresh words of the key stream, by way of float64, and is
    rounded once to ``out``'s dtype.

    There is no seed, no state to read, and no copy: pickling, copying, printing values and use in a
    forked child are refused.
    """

    __slots__ = ("_destroyed", "_makers", "_process")

    name: Final = f"{AesKeyStream.name}, {gaussian.NAME}"

    def __init__(self) -> None:
        self._makers: dict[torch.device, Gaussians] = {}
        self._process = os.getpid()
        self._destroyed = False

    def normal_(self, out: torch.Tensor) -> None:
        """Fill ``out`` with fresh N(0, 1).

        Raises:
            SealedStateError: the source was destroyed, or belongs to another process.
            ValueError: ``out`` is not a 1-D float32 or float64 tensor.
        """
        _require_vector(out)
        if self._destroyed:
            raise SealedStateError("this noise source was destroyed")
        if self._process != os.getpid():
            raise SealedStateError("a noise source serves the process that made it and no other")
        if out.device not in self._makers:
            self._makers[out.device] = _gaussians_on(out.device)
        self._makers[out.device].fill_(out)

    def destroy(self) -> None:
        """Drop the keys and overwrite all words and numbers; a second call does nothing."""
        self._destroyed = True
        for maker in self._makers.values():
            maker.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("a noise source cannot be copied or saved")


def _gaussians_on(device: torch.device) -> Gaussians:
    stream = AesKeyStream(fresh_key())
    if device.type == "cpu":
        return Gaussians(stream, device, pairs=_PAIRS_ON_CPU)
    return Gaussians(AheadKeyStream(stream, device), device, pairs=_PAIRS_ON_DEVICE)


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

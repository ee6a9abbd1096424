"""Gaussian noise: the only randomness that guarantees depend on.

The service uses ``SecureNoise``: a key from the operating system, an AES-256-CTR key stream
(``key_stream``), and sums of Box-Muller draws in float64 (``box_muller``).

A source never returns its numbers. It adds them to a position in float64 and rounds the sum to the
public grid of ``app.accounting.precision``, so that no digit of the sum reveals the position. It
counts its draws, and a certificate may claim no more.
"""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Final, NoReturn, Protocol

import torch

from app.accounting.precision import grid_of
from app.domain.errors import SealedStateError
from workers.noise import box_muller
from workers.noise.box_muller import Gaussians
from workers.noise.key_stream import AesKeyStream, fresh_key
from workers.noise.key_stream_ahead import AheadKeyStream

# A MiB of words, numbers and positions fits a core's cache, and calls cost little beside the work
# in them; from 2^15 numbers on, torch would wake its other threads.
_PAIRS_ON_CPU: Final = 16128
_PAIRS_ON_DEVICE: Final = 1 << 18


class NoiseSource(Protocol):
    """A stream of independent normal numbers."""

    @property
    def name(self) -> str:
        """The generator's name, as in certificates."""

    @property
    def drawn(self) -> Mapping[float, int]:
        """How many numbers were drawn and added, by standard deviation."""

    def add_(self, position: torch.Tensor, noise_std: float) -> None:
        """Add fresh N(0, noise_std^2) to 1-D float64 in place; round to ``grid_of(noise_std)``."""


class SecureNoise:
    """Normal numbers that cannot be predicted or repeated.

    Each instance draws a 256-bit key from the operating system for each device it serves. A pair of
    numbers uses four fresh words of the key stream.

    It has no seed, no readable state except the count, and no copies: pickling, copying, printing
    values and use in a forked child are refused.
    """

    __slots__ = ("_destroyed", "_drawn", "_makers", "_process")

    name: Final = f"{AesKeyStream.name}, {box_muller.NAME}"

    def __init__(self) -> None:
        self._makers: dict[torch.device, Gaussians] = {}
        self._drawn: Counter[float] = Counter()
        self._process = os.getpid()
        self._destroyed = False

    @property
    def drawn(self) -> Mapping[float, int]:
        """How many numbers were drawn and added, by standard deviation."""
        return dict(self._drawn)

    def add_(self, position: torch.Tensor, noise_std: float) -> None:
        """Add fresh N(0, noise_std^2) in place and round to ``grid_of(noise_std)``.

        Allocates no memory proportional to the position's size.

        Raises:
            SealedStateError: the source was destroyed, or belongs to another process.
            ParameterError: ``noise_std`` is out of its range.
            ValueError: ``position`` is not a 1-D float64 tensor.
        """
        require_vector(position)
        grid = grid_of(noise_std)
        if self._destroyed:
            raise SealedStateError("this noise source was destroyed")
        if self._process != os.getpid():
            raise SealedStateError("a noise source works only in the process that created it")
        if position.device not in self._makers:
            self._makers[position.device] = _gaussians_on(position.device)
        self._makers[position.device].add_(position, noise_std, grid=grid)
        self._drawn[float(noise_std)] += position.numel()

    def destroy(self) -> None:
        """Drop the keys and overwrite all words and numbers; safe to repeat."""
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


def require_vector(position: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``position`` is a 1-D float64 tensor."""
    if position.dim() != 1 or position.dtype != torch.float64:
        raise ValueError("noise is added to 1-D float64 tensors")

"""Gaussian noise: the only randomness that guarantees depend on.

The service uses ``SecureNoise``: a key from the operating system, a key stream (AES-256-CTR of the
CPU, ``key_stream``, or ChaCha20 of a CUDA device with Triton, ``device_key_stream``), and sums of
Box-Muller draws in float64 (``box_muller``).

A source never returns its numbers. It adds them to a position in float64 and rounds the sum to the
public grid of ``app.accounting.precision``, so that no digit of the sum reveals the position. It
counts its draws, and a certificate may claim no more.
"""

import importlib
import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import Final, NoReturn, Protocol

import torch

from app.accounting.precision import grid_of
from app.domain.errors import SealedStateError
from app.runtime.logs import describe
from workers.noise import box_muller
from workers.noise.box_muller import Gaussians
from workers.noise.key_stream import AesKeyStream, CopiedKeyStream, KeyStream, fresh_key

_log = logging.getLogger("expunge.worker")
# A MiB of words, numbers and positions fits a core's cache, and calls cost little beside the work
# in them; from 2^15 numbers on, torch would wake its other threads.
_PAIRS_ON_CPU: Final = 16128
_PAIRS_ON_DEVICE: Final = 1 << 18
_CPU: Final = torch.device("cpu")


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

    Each instance draws a 256-bit key from the operating system, for positions on one ``device``. A
    pair of numbers uses four fresh words of the key stream. For a CUDA device, creating it compiles
    a kernel: before the sealed phase.

    It has no seed, no readable state except the count, and no copies: pickling, copying, printing
    values and use in a forked child are refused.
    """

    __slots__ = ("_destroyed", "_device", "_drawn", "_maker", "_process", "name")

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device.type
        stream = _stream_on(device)
        self.name = f"{stream.name}, {box_muller.NAME}"
        pairs = _PAIRS_ON_CPU if device.type == "cpu" else _PAIRS_ON_DEVICE
        self._maker = Gaussians(stream, device, pairs=pairs)
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
            ValueError: ``position`` is not a 1-D float64 tensor, or on another device.
        """
        require_vector(position)
        if position.device.type != self._device:
            raise ValueError(f"this noise is for positions on {self._device}")
        grid = grid_of(noise_std)
        if self._destroyed:
            raise SealedStateError("this noise source was destroyed")
        if self._process != os.getpid():
            raise SealedStateError("a noise source works only in the process that created it")
        self._maker.add_(position, noise_std, grid=grid)
        self._drawn[float(noise_std)] += position.numel()

    def destroy(self) -> None:
        """Drop the key and overwrite all words and numbers; safe to repeat."""
        self._destroyed = True
        self._maker.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("a noise source cannot be copied or saved")


def _stream_on(device: torch.device) -> KeyStream:
    """Return a fresh key stream for a device; where Triton fails, words are copied from the CPU."""
    if device.type == "cpu":
        return AesKeyStream(fresh_key())
    try:
        module = importlib.import_module("workers.noise.device_key_stream")
        stream: KeyStream = module.DeviceKeyStream(fresh_key(), device)
    except Exception as error:  # noqa: BLE001 - no Triton, C compiler or cache, or another device
        _log.warning("noise is made on the CPU and copied: %s", describe(error))
        return CopiedKeyStream(AesKeyStream(fresh_key()))
    return stream


def require_vector(position: torch.Tensor) -> None:
    """Raise ``ValueError`` unless ``position`` is a 1-D float64 tensor."""
    if position.dim() != 1 or position.dtype != torch.float64:
        raise ValueError("noise is added to 1-D float64 tensors")

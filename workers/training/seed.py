"""What everything random in one training follows from."""

import hashlib
import os
import platform
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NoReturn

import numpy as np
import torch

from app.domain.errors import SealedStateError
from app.domain.provenance import Provenance

_KERNELS: Final = re.compile(r"Math Kernel Library Version [\w.]+|MKL-DNN v[\w.]+|CuDNN [\w.]+")


class Seed:
    """32 bytes of the operating system's, drawn for one training: independent of all records.

    Each use of it has numbers of its own. It is neither printed nor pickled.

    Args:
        known: that of an earlier training, in hex, to compute it again.
    """

    __slots__ = ("_bytes", "_is_repeatable")

    def __init__(self, known: str | None = None) -> None:
        self._bytes = os.urandom(32) if known is None else bytes.fromhex(known)
        self._is_repeatable = True

    def number(self, use: str) -> int:
        """Return the 256-bit number of a use."""
        return int.from_bytes(hashlib.sha256(self._bytes + use.encode()).digest())

    def start(self) -> None:
        """Let torch's own generator on the CPU draw a network's first weights."""
        torch.default_generator.manual_seed(self.number("start") >> 192)

    def draw(self) -> None:
        """Start the process's generators, of dropout and random variants.

        So what is drawn says nothing about earlier trainings, and the numbers that a row of a batch
        gets cannot be predicted: in DP-SGD they depend on which other records are in the sample.
        """
        torch.manual_seed(self.number("torch") >> 192)
        random.seed(self.number("python"))
        words = np.frombuffer(self.number("numpy").to_bytes(32), dtype=np.uint32)
        np.random.seed(words)  # noqa: NPY002 - for networks that use it

    def order(self) -> np.random.Generator:
        """Return what the order of records is drawn from."""
        return np.random.default_rng(self.number("order"))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Use kernels that compute alike each time, wherever there are any, until the block ends.

        Where there are none, the training has no provenance.
        """
        before = torch.get_deterministic_debug_mode()
        fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                yield
        finally:
            torch.set_deterministic_debug_mode(before)
            torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        self._is_repeatable = not any("determinis" in str(each.message) for each in caught)

    def provenance(
        self, device: torch.device, libraries: Mapping[str, str] = MappingProxyType({})
    ) -> Provenance | None:
        """Return what its training can be computed again from; None if that differs each time.

        ``libraries`` are the versions of those that compute beside those of every training.
        """
        made = {**made_with(device), **libraries}
        return Provenance(self._bytes.hex(), made) if self._is_repeatable else None

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SealedStateError("a seed cannot be copied, saved or sent")


def made_with(device: torch.device) -> dict[str, str]:
    """Return what must be equal for a training on a device to have equal bits."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    kernels = ", ".join(_KERNELS.findall(torch.__config__.show())) or "without a library"
    return {
        "device": f"{device.type} {name} {torch.backends.cpu.get_cpu_capability()}",
        "threads": str(torch.get_num_threads()),
        "kernels": kernels,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

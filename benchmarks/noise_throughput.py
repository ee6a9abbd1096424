"""How fast secure noise is beside ``torch.randn``: ``python -m benchmarks.noise_throughput``.

Both add noise to the same float64 vector in turn, in one run, so a machine that slows down slows
both; the figures are the fastest rounds. On a CPU a second is one of a core's work, whatever else
the machine does meanwhile. Ours is rounded to the public grid. The target: at least 0.1 times the
numbers per second.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from benchmarks import harness
from workers.noise.generators import NoiseSource, SecureNoise
from workers.training.team import choose_device

SIZE: Final = 1 << 23
TARGET: Final = 0.1


class OrdinaryNoise:
    """torch.randn in float64, for comparison, repeatable with a seed; it certifies nothing."""

    name = "torch.randn"
    drawn: Mapping[float, int] = {}

    def __init__(self, seed: int | None = None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def add_(self, position: torch.Tensor, noise_std: float) -> None:
        """Add N(0, noise_std^2), and round nothing."""
        made = {"generator": self._generator, "device": position.device, "dtype": torch.float64}
        position.add_(torch.randn(len(position), **made), alpha=noise_std)


def measure(device: torch.device, *, size: int = SIZE, rounds: int = 8) -> dict[str, Any]:
    """Return numbers per second of each source, float64, and secure to ordinary as ``ratio``."""
    position = torch.zeros(size, dtype=torch.float64, device=device)
    sources: tuple[NoiseSource, ...] = (OrdinaryNoise(), SecureNoise(device))
    taken: dict[str, list[float]] = {source.name: [] for source in sources}
    for _ in range(rounds + 1):
        for source in sources:
            taken[source.name].append(_seconds(source, position))
    speed = {name: size / min(seconds[1:]) for name, seconds in taken.items()}
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "size": size,
        "target": TARGET,
        "numbers_per_second": speed,
        "ratio": speed[sources[1].name] / speed[sources[0].name],
    }


def _seconds(source: NoiseSource, position: torch.Tensor) -> float:
    clock = time.perf_counter if position.is_cuda else time.process_time
    started = clock()
    source.add_(position, 1.0)
    if position.is_cuda:
        torch.cuda.synchronize(position.device)
    return clock() - started


if __name__ == "__main__":
    harness.main(
        "noise_throughput",
        __doc__,
        lambda _: [measure(choose_device())],
        met=lambda document: document["ratio"] >= TARGET,
    )

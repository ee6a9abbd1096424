"""What a noisy step costs beside a plain one: ``python -m benchmarks.step_overhead [--cuda]``.

Every mechanism takes its steps where the service takes them: planned by the planner, behind the
seal, on the feed and in the frame of its lineage (DP-SGD, which trains, in its own loop). A plain
step is one of the service's own training by SGD on the same network and records. All take turns
within one run, so a machine that slows down slows all of them. The target: gradient clipping and
model clipping at most 1.05 times a plain step. Beside it, how many numbers a second the service's
noise adds to a vector, and ``torch.randn``; on a CPU a second is one of a core's work. DP-SGD by
Opacus takes turns with ours where it is installed (``benchmarks.private_training``). ``--cuda``
measures a GPU and prints JSON alone.
"""

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import torch

from app.accounting import dp_sgd
from benchmarks import harness
from benchmarks.convex import OrdinaryNoise
from benchmarks.private_training import OPACUS, has_opacus
from benchmarks.step_cases import BATCH, CASES, PLAIN, Case
from workers.data.memory import keep_freed
from workers.noise.generators import NoiseSource, SecureNoise

STEPS: Final = 3
SIZE: Final = 1 << 23
LIMIT: Final = 1.05
LIMITED: Final = ("gradient_clipping", "model_clipping")


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the ratios of every case."""
    keep_freed()  # as workers do
    device, rounds = torch.device("cuda" if given.cuda else "cpu"), given.rounds
    harness.require(torch.cuda.is_available() or not given.cuda, "torch finds a CUDA device")
    rows = [row for case in CASES for row in measure(case, device, rounds=rounds, steps=STEPS)]
    yield {
        **harness.machine(device),
        "rounds": rounds,
        "limit": LIMIT,
        "noise_numbers_a_second": noise_a_second(device, rounds=rounds),
        "rows": rows,
    }


def noise_a_second(device: torch.device, *, rounds: int, size: int = SIZE) -> dict[str, float]:
    """Return how many float64 numbers each source adds to one vector, in turn: fastest rounds."""
    position = torch.zeros(size, dtype=torch.float64, device=device)
    sources: tuple[NoiseSource, ...] = (OrdinaryNoise(), SecureNoise(device))
    taken: dict[str, list[float]] = {source.name: [] for source in sources}
    for _ in range(rounds + 1):
        for source in sources:
            taken[source.name].append(_seconds(source, position))
    return {name: size / min(seconds[1:]) for name, seconds in taken.items()}


def _seconds(source: NoiseSource, position: torch.Tensor) -> float:
    clock = time.perf_counter if position.is_cuda else time.process_time
    started = clock()
    source.add_(position, 1.0)
    if position.is_cuda:
        torch.cuda.synchronize(position.device)
    return clock() - started


def measure(
    case: Case, device: torch.device, *, rounds: int, steps: int
) -> Iterable[dict[str, Any]]:
    """Yield each mechanism's step beside a plain one.

    Every figure is the fastest of all rounds: what else runs on the machine only ever adds to it.
    The first round warms up.
    """
    rival = [OPACUS] if dp_sgd.NAME in case.mechanisms and has_opacus() else []
    taken: dict[str, list[float]] = {name: [] for name in (PLAIN, *case.mechanisms, *rival)}
    position, alone = torch.zeros(case.size, dtype=torch.float64, device=device), list[float]()
    noise = SecureNoise(device)
    for _ in range(rounds + 1):
        alone.append(_seconds(noise, position))
        for name, seconds in taken.items():
            stamps = case.steps_of(name, SecureNoise(device), device, steps)
            seconds.append(min(later - earlier for earlier, later in pairwise(stamps)))
    least = {name: min(seconds[1:]) for name, seconds in taken.items()}
    plain = least.pop(PLAIN)
    for name, seconds in least.items():
        yield {
            "mechanism": name,
            "network": case.network,
            "parameters": case.size,
            "batch": BATCH,
            "plain_ms": 1000 * plain,
            "step_ms": 1000 * seconds,
            "ratio": seconds / plain,
            "noise_share": min(alone[1:]) / seconds,
        }


def met(document: dict[str, Any]) -> bool:
    """Say whether clipping keeps the limit."""
    limited = [row["ratio"] for row in document["rows"] if row["mechanism"] in LIMITED]
    return max(limited) <= LIMIT


if __name__ == "__main__":
    options = {
        "--rounds": {"type": int, "default": 8},
        "--cuda": {"action": "store_true", "help": "measure a GPU; the CPU's results stay"},
    }
    harness.main("step_overhead", __doc__, run, options=options, met=met)

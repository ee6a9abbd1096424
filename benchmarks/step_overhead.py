"""What a noisy step costs beside a plain one: ``python -m benchmarks.step_overhead``.

Every mechanism takes its steps where the service takes them: planned by the planner, behind the
seal, on the feed and in the frame of its lineage (DP-SGD, which trains, in its own loop). A plain
step is one of the service's own training by SGD on the same network and records. All take turns
within one run, so a machine that slows down slows all of them. The target: gradient clipping and
model clipping, with the service's own noise, at most 1.05 times a plain step; plain steps that can
be taken again from their seed, at most 1.02 times.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import torch

from benchmarks import harness
from benchmarks.noise_throughput import OrdinaryNoise
from benchmarks.step_cases import CASES, Case, Clock
from workers.data.memory import keep_freed
from workers.noise.generators import NoiseSource, SecureNoise
from workers.training.seed import Seed
from workers.training.team import choose_device

STEPS: Final = 3
LIMIT: Final = 1.05
LIMIT_OF_SEEDED: Final = 1.02
LIMITED: Final = ("gradient_clipping", "model_clipping")


NOISES: Final[Mapping[str, Callable[[torch.device], NoiseSource]]] = {
    "ordinary": lambda _: OrdinaryNoise(),
    "secure": SecureNoise,
}


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the ratios of every case."""
    keep_freed()  # as workers do
    device, rounds = choose_device(), given.rounds
    rows = [row for case in CASES for row in measure(case, device, rounds=rounds, steps=STEPS)]
    yield {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "limit": LIMIT,
        "seeded": {case.network: seeded(case, device, rounds=rounds) for case in CASES},
        "rows": rows,
    }


def measure(
    case: Case, device: torch.device, *, rounds: int, steps: int
) -> Iterable[dict[str, Any]]:
    """Yield each mechanism's step beside a plain one, with both kinds of noise.

    Every figure is the fastest of all rounds: what else runs on the machine only ever adds to it.
    The first round warms up.
    """
    variants = [(name, noise) for name in case.mechanisms for noise in NOISES]
    plain: list[float] = []
    noise_alone: dict[str, list[float]] = {noise: [] for noise in NOISES}
    taken: dict[tuple[str, str], list[float]] = {variant: [] for variant in variants}
    for _ in range(rounds + 1):
        plain.append(_seconds_a_step(case.plain(device, steps)))
        for noise in NOISES:
            noise_alone[noise].append(_seconds_of_noise(NOISES[noise](device), case.size, device))
        for name, noise in variants:
            stamps = case.steps_of(name, NOISES[noise](device), device, steps)
            taken[name, noise].append(_seconds_a_step(stamps))
    for name, noise in variants:
        yield {
            "mechanism": name,
            "network": case.network,
            "parameters": case.size,
            "batch": case.batch,
            "noise": noise,
            "plain_ms": _milliseconds(plain),
            "step_ms": _milliseconds(taken[name, noise]),
            "ratio": _ratio(taken[name, noise], plain),
            "noise_share": _ratio(noise_alone[noise], taken[name, noise]),
        }


def seeded(case: Case, device: torch.device, *, rounds: int) -> float:
    """Return what a plain step costs that can be taken again, over one that cannot.

    On the CPU in the processor's time, which nothing else on the machine changes much.
    """
    now = time.process_time if device.type == "cpu" else time.perf_counter
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds + 1):
        for again, steps in taken.items():
            seed = Seed() if again else None
            steps.append(_seconds_a_step(case.plain(device, STEPS, seed=seed, now=now)))
    return _ratio(taken[True], taken[False])


def table(document: dict[str, Any]) -> str:
    """Return each mechanism's step over a plain one."""
    rows = {(row["network"], row["mechanism"], row["noise"]): row for row in document["rows"]}
    lines = []
    for (network, mechanism, noise), row in rows.items():
        if noise == "secure":
            ordinary = rows[network, mechanism, "ordinary"]["ratio"]
            ratio, share = f"{row['ratio']:.2f}", f"{row['noise_share']:.0%}"
            lines.append((f"`{mechanism}`", network, f"{ordinary:.2f}", ratio, share))
    columns = "ratio, ordinary noise | ratio, secure noise | share of secure noise"
    return harness.table(f"mechanism | network | {columns}", lines)


def met(document: dict[str, Any]) -> bool:
    """Say whether clipping with secure noise keeps the limit."""
    secure = [row for row in document["rows"] if row["noise"] == "secure"]
    return all(row["ratio"] <= LIMIT for row in secure if row["mechanism"] in LIMITED) and all(
        ratio <= LIMIT_OF_SEEDED for ratio in document["seeded"].values()
    )


def _seconds_a_step(stamps: list[float]) -> float:
    """Return the shortest time between one step's end and the next one's."""
    return min(later - earlier for earlier, later in pairwise(stamps))


def _seconds_of_noise(noise: NoiseSource, size: int, device: torch.device) -> float:
    position, clock = torch.zeros(size, dtype=torch.float64, device=device), Clock(device, 3)
    while len(clock.stamps) < 3:
        noise.add_(position, 1.0)
        clock.tick()
    return _seconds_a_step(clock.stamps)


def _milliseconds(taken: list[float]) -> float:
    return 1000 * min(taken[1:])


def _ratio(taken: list[float], of: list[float]) -> float:
    return min(taken[1:]) / min(of[1:])


if __name__ == "__main__":
    options = {"--rounds": {"type": int, "default": 8}}
    harness.main("step_overhead", __doc__, run, options=options, table=table, met=met)

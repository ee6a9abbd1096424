"""What a device does in a second: ``python -m benchmarks.gpu`` prints JSON.

Steps of plain training and of every mechanism, and noise numbers, as ``benchmarks.step_overhead``
times them. Without a CUDA device it fails; ``--device cpu`` proves the command.
"""

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from benchmarks import harness
from benchmarks.step_cases import CASES
from benchmarks.step_overhead import measure, noise_a_second


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mechanism", help="time this one alone")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu measures the CPU")
    found = measured(torch.device(given.device), rounds=given.rounds, mechanism=given.mechanism)
    print(json.dumps(found, indent=1))


def measured(device: torch.device, *, rounds: int, mechanism: str | None = None) -> dict[str, Any]:
    """Return the device's name, the date, noise numbers and steps a second."""
    rows = list[dict[str, Any]]()
    for case in CASES:
        named = {name: how for name, how in case.mechanisms.items() if mechanism in (None, name)}
        if named:
            rows += measure(replace(case, mechanisms=named), device, rounds=rounds, steps=3)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **harness.machine(device),
        "noise_numbers_a_second": noise_a_second(device, rounds=3),
        "steps": [row | {"steps_a_second": 1000 / row["step_ms"]} for row in rows],
    }


if __name__ == "__main__":
    main()

"""What a device does in a second: ``python -m benchmarks.gpu`` prints JSON.

Steps of plain training and of every mechanism, as ``benchmarks.step_overhead`` times them, and how
many noise numbers are drawn. Without a CUDA device it fails; ``--device cpu`` proves the command.
"""

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch

from benchmarks import harness, noise_throughput
from benchmarks.step_cases import CASES
from benchmarks.step_overhead import measure
from workers.noise.generators import SecureNoise


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
    noise = noise_throughput.measure(device, size=1 << 22, rounds=3)["numbers_per_second"]
    rows = []
    for case in CASES:
        names = [name for name in case.mechanisms if mechanism in (None, name)]
        chosen = replace(case, mechanisms={name: case.mechanisms[name] for name in names})
        rows += [
            {
                "network": row["network"],
                "mechanism": row["mechanism"],
                "plain_steps_a_second": 1000 / row["plain_ms"],
                "steps_a_second": 1000 / row["step_ms"],
                "ratio": row["ratio"],
            }
            for row in (measure(chosen, device, rounds=rounds, steps=3) if names else ())
            if row["noise"] == "secure"
        ]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        **harness.machine(device),
        "noise_numbers_a_second": noise[SecureNoise(device).name],
        "steps": rows,
    }


if __name__ == "__main__":
    main()

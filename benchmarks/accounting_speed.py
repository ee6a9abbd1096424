"""How fast the accountants are, against the limits that the project set.

    python -m benchmarks.accounting_speed

prints one line a limit and exits 1 where one is broken. Times are the best of several runs.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.accounting import (
    gradient_clipping,
    output_perturbation,
)
from app.accounting.chains.minorant import minorant_mu
from app.accounting.histories.history import History, Recipe
from app.accounting.histories.history_account import HistoryAccountant
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks import chien_tables
from benchmarks.published_tables import published_folder

TARGET = {"epsilon": 1.0, "delta": 1e-5}
MANY = 1_000_000


def calibrations() -> dict[str, Callable[[], object]]:
    """Return a call of ``calibrate`` for every mechanism with a closed form."""
    clipping = {"gradient_clip": 1.0, "learning_rate": 0.01, "weight_decay": 0.1, "steps": MANY}
    return {
        "gradient_clipping, T = 10^6": lambda: gradient_clipping.calibrate(
            **TARGET, initial_clip=1.0, **clipping
        ),
        "output_perturbation": lambda: output_perturbation.calibrate(**TARGET, initial_clip=1.0),
    }


def histories() -> dict[str, Callable[[], object]]:
    """Return calls that account for long lineages: of many steps, and of many requests."""
    recipe = Recipe(
        learning_rate=1.0,
        weight_decay=0.01,
        smoothness=0.25,
        lipschitz=1.0,
        batch_size=128,
        batches=100,
        dimension=1000,
    )
    long = History(recipe).after_steps(MANY, noise_std=0.1).after_request({7: 1})
    lived = History(recipe).after_steps(1000, noise_std=0.1)
    for request in range(300):
        lived = lived.after_request({request % 100: 1}).after_steps(5, noise_std=0.1)
        lived = lived.after_release()
    return {
        "10^6 noisy steps": lambda: HistoryAccountant(long, TrackedRelease.terms).guarantee(),
        "300 requests": lambda: HistoryAccountant(lived, TrackedRelease.terms).guarantee(),
    }


def odometer_step() -> float:
    """Return the seconds of one odometer step, loop included."""
    odometer = gradient_clipping.Odometer(initial_clip=1.0)
    size = gradient_clipping.step_size(gradient_clip=1.0, learning_rate=0.01, weight_decay=0.1)

    def walk() -> None:
        for _ in range(100_000):
            odometer.step(size, 0.1)

    return _best(walk, 5) / 100_000


def minorant() -> float:
    """Return the seconds of the convex minorant over 10^6 steps, all different."""
    generator = np.random.default_rng(1)
    schedule: dict[str, Any] = {
        "contractions": generator.uniform(0.9, 1.0, MANY).tolist(),
        "shifts": generator.uniform(0.0, 1.0, MANY).tolist(),
        "noise_stds": generator.uniform(0.1, 1.0, MANY).tolist(),
    }
    return _best(lambda: minorant_mu(start_distance=1.0, **schedule), 2)


def tables() -> dict[str, float]:
    """Return the seconds of the published 100-request tables, theirs and ours, by batch size."""
    published = json.loads((published_folder() / "chien-2024.json").read_text())
    sizes = sorted({row["batch_size"] for row in published["rows"]})
    seconds = {}
    for size in sizes:
        rows = [row for row in published["rows"] if row["batch_size"] == size]
        table = {**published, "rows": rows}
        seconds[f"100-request table, b = {size}"] = _best(
            lambda table=table: chien_tables.request_rows(table), 2
        )
    return seconds


def main() -> int:
    """Print every figure with its limit; return the exit status."""
    slow = 0
    for name, call in calibrations().items():
        slow += _report(f"calibrate {name}", _best(call, 20), 10e-3)
    for name, call in histories().items():
        slow += _report(f"history, {name}", _best(call, 5), 100e-3)
    slow += _report("odometer step", odometer_step(), 2e-6)
    for name, seconds in tables().items():
        slow += _report(name, seconds, 2.0)
    slow += _report("convex minorant, 10^6 steps", minorant(), 3.0)
    return 1 if slow else 0


def _best(call: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _report(name: str, seconds: float, limit: float) -> bool:
    verdict = "ok" if seconds < limit else "TOO SLOW"
    print(f"{name:45} {_unit(seconds):>10}   limit {_unit(limit):>8}   {verdict}")
    return seconds >= limit


def _unit(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds} s"


if __name__ == "__main__":
    sys.exit(main())

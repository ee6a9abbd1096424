"""A second accountant of lineages, for tests: it walks every step and trusts nothing of the first.

It reads the history that a certificate prints, as JSON, and imports no code of the product. From
the last step back to the first, a shift or a variance counts with the contraction of what came
later; the hull of their sums is found by Andrew's monotone chain (docs/guarantees.md, Theorem 4).
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def independent_mu(history: Mapping[str, Any], *, adaptive: bool = False) -> float:
    """Return mu of what a history guarantees, in real arithmetic; infinite where nothing hides."""
    runs = _walk(history, adaptive=adaptive)
    whole = math.hypot(*(_hull_mu(run) for run in runs))
    return whole if adaptive else min(whole, _from_last_request(history))


def _steps(history: Mapping[str, Any]) -> list[tuple[float, float, float, str]]:
    """Return contraction, shift, noise and kind of every step, release and request, in order."""
    recipe, position, walked = history["recipe"], 0, []
    moved = recipe["learning_rate"] * recipe["lipschitz"] / recipe["batch_size"]
    moved *= {"zero_out": 1, "replacement": 2}[recipe["neighbours"]]
    rate = 1 - recipe["learning_rate"] * recipe["weight_decay"]
    for index, event in enumerate(history["events"]):
        present: dict[int, int] = {}
        for later in history["events"][index:]:
            for batch, count in later.get("forget", []):
                present[batch] = present.get(batch, 0) + count
        for _ in range(event.get("steps", 0)):
            shift = moved * present.get(position % recipe["batches"], 0)
            walked.append((rate, shift, event["noise_std"], "step"))
            position += 1
        if "release" in event:
            walked.append((1.0, 0.0, event["release"], "release"))
        if "forget" in event:
            walked.append((1.0, 0.0, 0.0, "forget"))
    return walked


def _walk(history: Mapping[str, Any], *, adaptive: bool) -> list[list[tuple[float, float, float]]]:
    runs: list[list[tuple[float, float, float]]] = [[]]
    for rate, shift, noise_std, kind in _steps(history):
        runs[-1].append((rate, shift, noise_std))
        if adaptive and kind == "release":
            runs.append([])
    return runs


def _hull_mu(run: list[tuple[float, float, float]]) -> float:
    """Return mu of one run from equal starts."""
    unit, variance, distance, points = 1.0, 0.0, 0.0, [(0.0, 0.0)]
    for rate, shift, noise_std in reversed(run):
        if noise_std > 0:  # what lies behind this noise, in units of the last iterate
            points.append((variance, distance))
        variance += (noise_std * unit) ** 2
        distance += shift * unit
        unit *= rate
    points.append((variance, distance))
    if distance == 0:
        return 0.0
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1 and _turns_left(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    pieces = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(hull)]
    if any(width == 0 and height > 0 for width, height in pieces):
        return math.inf
    return math.sqrt(sum(height**2 / width for width, height in pieces if width > 0))


def _turns_left(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) >= (b[1] - a[1]) * (c[0] - a[0])


def _from_last_request(history: Mapping[str, Any]) -> float:
    """Return the bound from the drift at the last request; only a ball can make it the better."""
    radius = history["recipe"]["radius"]
    if radius is None:
        return math.inf
    walked = _steps(history)
    last = max((k for k, (*_, kind) in enumerate(walked) if kind == "forget"), default=-1)
    drift = variance = 0.0
    for index, (rate, shift, noise_std, kind) in enumerate(walked):
        drift = rate * drift + shift
        drift = min(2 * radius, drift) if kind == "step" else drift
        variance = rate**2 * variance + noise_std**2 if index > last else 0.0
    return drift / math.sqrt(variance) if variance > 0 else math.inf if drift > 0 else 0.0

"""Ten classes on a linear head: ``python -m benchmarks.multiclass_head``.

100 requests for 10 records each, one after the other, on MNIST with a softmax head: on raw pixels,
and on a frozen network's last hidden layer, that network being trained on a half of the data that
the head never sees. Tracked release and projected noisy SGD against retraining from zeros, long and
short. Every request meets (epsilon, 1/n) by its accountant, or the run stops. All requests
are planned, certified and counted; of ours the last ten are really run, of retraining every 25th.
Costs are per-record
gradients after training. The figures go to benchmarks/results/multiclass_head.json and .png.

    python -m benchmarks.multiclass_head [--seeds 3] [--processes 2]
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from app.accounting.histories.strong_convexity import contraction
from app.accounting.terms import Neighbours
from benchmarks import convex_figures, harness
from benchmarks.convex_backbone import backbone_features
from benchmarks.convex_case import Case, of_features
from benchmarks.convex_methods import (
    Method,
    Target,
    noisy_steps,
    retrained,
    tracked,
)
from benchmarks.convex_runs import (
    Outcome,
    Trainings,
    answer,
    combined,
    described,
    line,
    noise_sweep,
)
from benchmarks.data import Pictures, load

EPSILONS: Final = (0.1, 1.0, 5.0)
REQUESTS: Final = 100
RECORDS: Final = 10
BATCH: Final = 32
TRAINING_EPOCHS: Final = 3
RELEASE_NOISE: Final = 0.05
SWEEP: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
RUN_LAST: Final = 10  # of our requests: each contracts what came before to a third or less
SHORT: Final = (5, 20, 80, 320)  # steps of retraining that stops early
WEIGHT_DECAYS: Final = (0.01, 0.003, 0.001, 0.0003)

Labelled = tuple[dict[str, Any], Outcome]


@dataclass(frozen=True)
class Grid:
    """How much is run: the defaults are the benchmark, smaller numbers are for tests."""

    requests: int = REQUESTS
    records: int = RECORDS
    epsilons: tuple[float, ...] = EPSILONS
    sweep: tuple[float, ...] = SWEEP


def cases(pictures: Pictures) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield each case with what the result says of it; the backbone is trained here."""
    settings = {"batch_size": BATCH}
    raw = of_features("raw pixels", pictures.train, pictures.test, weight_decay=0.003, **settings)
    yield raw, {}
    train, test, score = backbone_features(pictures)
    features = of_features("backbone", train, test, weight_decay=0.01, **settings)
    yield features, {"backbone_accuracy": score}


def settled_noise(case: Case, _: Target) -> float:
    """Return the step noise that settles at ``RELEASE_NOISE`` per coordinate in the weights."""
    rate = contraction(
        learning_rate=1 / (case.smoothness + case.weight_decay),
        weight_decay=case.weight_decay,
        smoothness=case.smoothness,
    )
    return RELEASE_NOISE * math.sqrt(1 - rate * rate)


def methods(case: Case) -> list[Method]:
    """Return all rows."""
    cycle = case.records // BATCH
    ours = partial(Method, source="ours", batch_size=BATCH, simulated_last=RUN_LAST)
    exact = partial(Method, source="exact", batch_size=BATCH, simulated_every=25)
    release = ours("tracked release", plan=tracked(RELEASE_NOISE))
    return [
        release,
        replace(release, neighbours=Neighbours.REPLACEMENT),
        ours("projected noisy SGD", plan=noisy_steps(settled_noise), step_noise_std=settled_noise),
        exact("retraining, 3 epochs", plan=retrained(TRAINING_EPOCHS * cycle)),
        exact("retraining, 1 epoch", plan=retrained(cycle)),
        *(
            exact(f"retraining, {steps} steps", plan=retrained(steps))
            for steps in SHORT
            if steps < cycle
        ),
    ]


def rows_of(case: Case, grid: Grid, seed: int) -> Iterator[Labelled]:
    """Yield every row for one seed; exact rows are run once for all targets."""
    trainings = Trainings(case, seed=seed, epochs=TRAINING_EPOCHS)
    for method in methods(case):
        exact = method.source == "exact"
        for epsilon in grid.epsilons[:1] if exact else grid.epsilons:
            outcome = _outcome(case, method, epsilon, trainings, grid, seed)
            for reached in grid.epsilons if exact else (epsilon,):
                yield described(method) | {"epsilon": reached}, outcome


def decay_rows(case: Case, grid: Grid, seed: int) -> Iterator[Labelled]:
    """Yield what tracked release costs at epsilon 1 by weight decay; only its end is run."""
    for weight_decay in WEIGHT_DECAYS:
        other = replace(case, weight_decay=weight_decay)
        method = replace(methods(other)[0], simulated_last=1)
        trainings = Trainings(other, seed=seed, epochs=TRAINING_EPOCHS)
        yield (
            {"weight_decay": weight_decay},
            _outcome(other, method, 1.0, trainings, grid, seed),
        )


def _outcome(
    case: Case, method: Method, epsilon: float, trainings: Trainings, grid: Grid, seed: int
) -> Outcome:
    target = Target(epsilon, case.delta)
    start = trainings.start(method, target)
    return answer(
        case, method, target, start, requests=grid.requests, records=grid.records, seed=seed
    )


def one_seed(seed: int, grid: Grid) -> list[dict[str, Any]]:
    """Return all tables of one seed, a dictionary for each case."""
    torch.set_num_threads(1)
    return [
        {
            "case": case.name,
            "records": case.records,
            "weight_decay": case.weight_decay,
            **extra,
            "rows": list(rows_of(case, grid, seed)),
            "release_noise": list(
                noise_sweep(
                    case,
                    methods(case)[0],
                    Trainings(case, seed=seed, epochs=TRAINING_EPOCHS),
                    noise_stds=grid.sweep,
                    requests=grid.requests,
                    records=grid.records,
                    seed=seed,
                )
            ),
            "weight_decays": list(decay_rows(case, grid, seed)),
        }
        for case, extra in cases(load("mnist"))
    ]


def main() -> None:
    """Run, print and write everything."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--processes", type=int, default=2)
    options = harness.parsed(parser, "multiclass_head")
    started = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as pool:
        grid = Grid(requests=options.requests)
        seeds = list(pool.map(partial(one_seed, grid=grid), range(options.seeds)))
    pictures = load("mnist")
    document: dict[str, Any] = {
        "data": pictures.name,
        "note": pictures.note,
        "requests": options.requests,
        "records_per_request": RECORDS,
        "batch_size": BATCH,
        "release_noise_std": RELEASE_NOISE,
        "cases": [],
    }
    for same in zip(*seeds, strict=True):
        tables = {
            name: combined([seed[name] for seed in same])
            for name in ("rows", "release_noise", "weight_decays")
        }
        document["cases"].append(same[0] | tables)
    document["wall_s"] = round(time.perf_counter() - started, 1)
    harness.write(document, options.results)
    convex_figures.draw_multiclass(document, options.results.with_suffix(".png"))
    for case in document["cases"]:
        print(case["case"])
        for row in case["rows"]:
            print(line(row))


if __name__ == "__main__":
    main()

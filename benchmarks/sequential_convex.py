"""100 forget requests in a row on a linear head: ``python -m benchmarks.sequential_convex``.

MNIST 3 against 8 in the setting of Chien et al. 2024: unit-norm pixels, n = 11264, lambda = 1e-6 n,
step size 1/L, delta = 1/n, one record a request. Every method meets (epsilon, delta) at every
request by its own accountant, or the run stops. Costs are per-record gradients after training, b
for a step over a batch of b. Of slow baselines only some requests are really run, those at the end
or every so many (``Method.simulates``); all are planned, certified and counted. Ours are counted
under ``zero_out`` and, as the paper counts, under ``replacement``.
"""

import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.accounting.terms import Neighbours
from benchmarks import convex_runs as by
from benchmarks import harness
from benchmarks.convex import Case, two_digits
from benchmarks.data import load

TRAINING_EPOCHS: Final = 20  # Chien et al. 2024, Table 2, for b = 128
SMALL_STEP_NOISE: Final = 0.02
_CAPPED: Final = 150  # steps of Langevin unlearning as published; contracts the start to 1e-3


def small_noise(_: Case, __: by.Target) -> float:
    """Return a step noise well below the paper's."""
    return SMALL_STEP_NOISE


def one_epoch_noise(case: Case, target: by.Target) -> float:
    """Return the smallest step noise with which the paper's bound lets one epoch do."""
    return by.step_noise_std(case, by.one_epoch_noise_scale(case, target))


def methods(case: Case) -> list[by.Method]:
    """Return all rows of the comparison."""
    batch = by.PAPER_BATCH if case.records > 1000 else 32
    cycle = case.records // batch
    published = partial(
        by.Method, source="published", neighbours=Neighbours.REPLACEMENT, batch_size=batch
    )
    ours = partial(by.Method, source="ours", batch_size=batch)
    exact = partial(by.Method, source="exact", batch_size=batch, simulated_every=10)
    projected = {"radius": by.RADIUS, "simulated_every": 10}
    noisy: dict[str, Any] = {
        "plan": by.noisy_steps(by.papers_noise),
        "step_noise_std": by.papers_noise,
    }
    small: dict[str, Any] = {"plan": by.noisy_steps(small_noise), "step_noise_std": small_noise}
    release = by.tracked(by.RELEASE_NOISE)
    all_ours = [
        ours("tracked release", plan=release),
        *(
            ours(f"tracked release, b = {size}", batch_size=size, plan=release)
            for size in (batch // 4, 4 * batch)
            if case.records % size == 0
        ),
        ours("projected noisy SGD, σ = 0.03", **noisy),
        ours("projected noisy SGD, σ = 0.007", **small),
        ours("Delete-to-Descent", plan=release, batch_size=0, longest_step=True, simulated_last=5),
        ours("noisy gradient descent, σ = 0.03", **noisy, batch_size=0, simulated_last=5),
    ]
    return [
        published(
            "projected noisy SGD, σ = 0.03",
            plan=by.projected_noisy_sgd_epochs(by.PAPER_NOISE_SCALE),
            step_noise_std=by.papers_noise,
            **projected,
        ),
        published(
            "projected noisy SGD, one epoch, least σ",
            plan=by.projected_noisy_sgd_one_epoch,
            step_noise_std=one_epoch_noise,
            **projected,
        ),
        published(
            "Delete-to-Descent",
            batch_size=0,
            plan=by.delete_to_descent,
            longest_step=True,
            simulated_last=1,
        ),
        published(
            "Langevin unlearning, σ = 0.03",
            batch_size=0,
            plan=by.langevin,
            step_noise_std=by.papers_noise,
            simulated_last=1,
            at_most=_CAPPED,
        ),
        *(
            replace(method, neighbours=relation)
            for method in all_ours
            for relation in (Neighbours.ZERO_OUT, Neighbours.REPLACEMENT)
        ),
        exact("retraining, 20 epochs", plan=by.retrained(TRAINING_EPOCHS * cycle)),
        exact("retraining, 1 epoch", plan=by.retrained(cycle)),
        *(
            exact(f"retraining, {steps} steps", plan=by.retrained(steps))
            for steps in (5, 10, 20, 40)
            if steps < cycle
        ),
    ]


COMPARISON: Final = by.Comparison(
    methods,
    epsilons=(0.05, 0.1, 0.5, 1.0, 5.0),
    epochs=TRAINING_EPOCHS,
    full_batch_steps=300,  # contracts the start to 2e-6
)


def one_seed(seed: int, comparison: by.Comparison) -> list[dict[str, Any]]:
    """Return all rows of one seed."""
    return [comparison.tables(two_digits(load("mnist")), seed)]


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield everything."""
    started = time.perf_counter()
    (tables,) = by.of_all_seeds(one_seed, COMPARISON, given)
    pictures = load("mnist")
    case = two_digits(pictures)
    yield {
        "data": case.name,
        "note": pictures.note,
        "records": case.records,
        "weight_decay": case.weight_decay,
        "delta": case.delta,
        "requests": given.requests,
        "release_noise_std": by.RELEASE_NOISE,
        **tables,
        "wall_s": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    harness.main("sequential_convex", __doc__, run, **by.SHOWN)

"""Ten classes on a linear head: ``python -m benchmarks.multiclass_head``.

100 requests for 10 records each, one after the other, on MNIST with a softmax head: on raw pixels,
and on a frozen network's last hidden layer, that network being trained on a half of the data that
the head never sees. Tracked release and projected noisy SGD against retraining from zeros, long and
short. Every request meets (epsilon, 1/n) by its accountant, or the run stops. All requests are
planned, certified and counted; of ours the last ten are really run, of retraining every 25th. Costs
are per-record gradients after training.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from app.accounting.histories.strong_convexity import contraction
from app.accounting.terms import Neighbours
from app.domain.architectures import ArchitectureSpec
from app.domain.recipes import TrainingRecipe
from benchmarks import convex_runs as by
from benchmarks import harness
from benchmarks.convex import Case, of_features, shuffled
from benchmarks.data import Pictures, load, network_of
from workers.training.examples import Examples, classified
from workers.training.networks.network import Network
from workers.training.tasks.task import INPUTS

BATCH: Final = 32
TRAINING_EPOCHS: Final = 3
RUN_LAST: Final = 10  # of our requests: each contracts what came before to a third or less
SHORT: Final = (5, 20, 80, 320)  # steps of retraining that stops early
_BACKBONE: Final = ArchitectureSpec(name="mlp", options={"hidden": [128, 64]})
_RECIPE: Final = TrainingRecipe(learning_rate=0.1, momentum=0.9, batch_size=64, epochs=5)


def public_half(pictures: Pictures) -> tuple[Examples, Examples]:
    """Return the training pictures in two disjoint halves: the public one, and the head's."""
    half = len(pictures.train) // 2
    rest = len(pictures.train) - half
    return shuffled(pictures.train, half), shuffled(pictures.train, rest, skip=half)


def cases(pictures: Pictures) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield each case with what the result says of it; the backbone is trained here."""
    raw = of_features(
        "raw pixels", pictures.train, pictures.test, weight_decay=0.003, batch_size=BATCH
    )
    yield raw, {}
    public, private = public_half(pictures)
    network = Network(lambda: network_of(_BACKBONE, public), device=torch.device("cpu"))
    network.train(public, _RECIPE, epochs=_RECIPE.epochs)
    score = network.evaluate(pictures.test).score
    layers = torch.nn.Sequential(*list(network.module.children())[:-1]).eval()
    train, test = (_features(layers, part) for part in (private, pictures.test))
    features = of_features("backbone", train, test, weight_decay=0.01, batch_size=BATCH)
    yield features, {"backbone_accuracy": score}


def _features(layers: torch.nn.Module, examples: Examples) -> Examples:
    with torch.no_grad():
        batches = examples.in_order(1024, device=examples.device)
        outputs = torch.cat([layers(batch[INPUTS]) for batch in batches])
    return classified(outputs, examples.target)


def settled_noise(case: Case, _: by.Target) -> float:
    """Return the step noise that settles at ``RELEASE_NOISE`` per coordinate in the weights."""
    constants = case.constants
    del constants["lipschitz"]
    rate = contraction(**constants)
    return by.RELEASE_NOISE * math.sqrt(1 - rate * rate)


def methods(case: Case) -> list[by.Method]:
    """Return all rows."""
    cycle = case.records // BATCH
    ours = partial(by.Method, source="ours", batch_size=BATCH, simulated_last=RUN_LAST)
    exact = partial(by.Method, source="exact", batch_size=BATCH, simulated_every=25)
    release = ours("tracked release", plan=by.tracked(by.RELEASE_NOISE))
    return [
        release,
        replace(release, neighbours=Neighbours.REPLACEMENT),
        ours(
            "projected noisy SGD", plan=by.noisy_steps(settled_noise), step_noise_std=settled_noise
        ),
        exact("retraining, 3 epochs", plan=by.retrained(TRAINING_EPOCHS * cycle)),
        exact("retraining, 1 epoch", plan=by.retrained(cycle)),
        *(
            exact(f"retraining, {steps} steps", plan=by.retrained(steps))
            for steps in SHORT
            if steps < cycle
        ),
    ]


COMPARISON: Final = by.Comparison(
    methods, epsilons=(0.1, 1.0, 5.0), epochs=TRAINING_EPOCHS, records=10
)


def one_seed(seed: int, comparison: by.Comparison) -> list[dict[str, Any]]:
    """Return all tables of one seed, a dictionary for each case."""
    return [
        {
            "case": case.name,
            "records": case.records,
            "weight_decay": case.weight_decay,
            **extra,
            **comparison.tables(case, seed),
        }
        for case, extra in cases(load("mnist"))
    ]


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield everything."""
    started = time.perf_counter()
    measured = by.of_all_seeds(one_seed, COMPARISON, given)
    pictures = load("mnist")
    yield {
        "data": pictures.name,
        "note": pictures.note,
        "requests": given.requests,
        "records_per_request": COMPARISON.records,
        "batch_size": BATCH,
        "release_noise_std": by.RELEASE_NOISE,
        "cases": measured,
        "wall_s": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    harness.main("multiclass_head", __doc__, run, **by.SHOWN)

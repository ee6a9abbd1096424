"""Koloskova et al. 2025, Figure 3, with what rivals do: ``python -m benchmarks.frozen_backbone``.

The paper's head of three layers on a frozen public backbone, CIFAR-10. EfficientNet-Lite0 stands
for its ResNet-18, on 10,000 pictures at 96 pixels, of which a tenth is forgotten. Noisy mechanisms
are truly at (epsilon, 1e-5), each beside its random start, as in
``benchmarks.unlearning_vs_retraining``, which also tunes retraining. Beside them the same records
leave a ridge head, a softmax head and an ensemble of eight, every member of which is concerned; the
ensemble is scored with members left out, too, which is how it answers single people. DP-SGD is
trained at (epsilon, 1e-5) for a group, on all records; the paper's is at epsilon 50 for 0.5 %.
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from app.domain.architectures import ArchitectureSpec
from app.domain.errors import PlanError
from benchmarks import ensembles_cases, harness, rivals
from benchmarks.convex import service_head, softmax_minimum
from benchmarks.data import CLASSES, Pictures, network_of
from benchmarks.ensembles import ridge_head
from benchmarks.leaving_out import Ensemble
from benchmarks.public_features import default_cache
from benchmarks.unlearning_vs_retraining import (
    FORGOTTEN_SHARE,
    METHODS,
    OWN,
    RETRAINING,
    Arm,
    Case,
    best_of,
    recipe_of,
    starts_of,
    tuned,
)

HEAD: Final = ArchitectureSpec("mlp", {"hidden": [32, 32]})
EPSILONS: Final = (0.1, 1.0, 10.0)
GROUP: Final = 0.005  # of the records
MEMBERS: Final = 8
PASSES: Final = 20  # of an ensemble's and of DP-SGD's training
_SOFTMAX: Final = {"regularisation": 1e-5, "tolerance": 7e-4}
_RATES: Final = (0.1, 0.5)  # of DP-SGD
_COLOURS: Final = dict(zip(EPSILONS, ("C3", "C0", "C2"), strict=True))

Row = dict[str, Any]
Private = tuple[float, int]  # epsilon, and for groups of how many


def arms() -> Iterator[Arm]:
    """Yield retraining, each noisy mechanism at each epsilon, and at 1 from a random start.

    What the noise ends with is the frame's scale at each epsilon, so one start serves all.
    """
    yield Arm(RETRAINING)
    for method in METHODS:
        yield from (Arm(method, epsilon=epsilon) for epsilon in EPSILONS)
        yield Arm(method, control=True)


def beside(
    case: ensembles_cases.Case, seed: int, private: Mapping[Private, float]
) -> Iterator[tuple[str, float, float]]:
    """Yield what needs no budget: its name, accuracy, and gradients as passes over all records."""
    order = np.random.default_rng(seed).permutation(len(case.train))
    left = np.ones(len(order), dtype=bool)
    left[order[: int(FORGOTTEN_SHARE * len(order))]] = False
    yield "ridge head", ridge_head(case, left)["accuracy"], 0.0
    rest = case.train.select(np.flatnonzero(left))
    head = service_head(case.train.inputs[0].numel(), CLASSES)
    softmax = softmax_minimum(head, CLASSES, rest, case.test, **_SOFTMAX)
    yield "softmax head", softmax.evaluation.score, float(softmax.passes)
    ensemble = Ensemble(case, MEMBERS)
    ensemble.train(left)
    yield f"ensemble of {MEMBERS}", ensemble.without(0), case.recipe.epochs
    for out in (1, MEMBERS // 2):
        yield f"ensemble of {MEMBERS}, {out} left out", ensemble.without(out / MEMBERS), 0.0
    for (epsilon, group), rate in private.items():
        name = f"DP-SGD, ε = {epsilon:g} for groups of {group}"
        yield name, _private_score(case, (epsilon, group), rate), 0.0


def private_rates(case: ensembles_cases.Case) -> dict[Private, float]:
    """Return the rate of DP-SGD that does best on held-out records, for each epsilon and group."""
    group = round(GROUP * len(case.train))
    settings = [(epsilon, size) for epsilon in EPSILONS for size in (1, group)]
    order = np.random.default_rng(0).permutation(len(case.train))
    held_out, rest = np.split(order, [len(order) // 10])
    inner = replace(case, train=case.train.select(rest), test=case.train.select(held_out))
    score = partial(_private_score, inner)
    return {each: max(_RATES, key=partial(score, each)) for each in (*settings, (50.0, group))}


def _private_score(case: ensembles_cases.Case, private: Private, rate: float) -> float:
    epsilon, group = private
    network, _ = rivals.privately(case, group, epsilon=epsilon, learning_rate=rate)
    return network.evaluate(case.test).score


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures so far after every repeat."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    known = (
        ensembles_cases.digits(public=False)
        if given.quick
        else ensembles_cases.head(cache=given.cache)
    )
    built = partial(network_of, HEAD, known.train)
    case = replace(known, random=built, recipe=replace(known.recipe, epochs=given.passes))
    pictures = Pictures("features", HEAD, case.train, case.test)
    tuning = tuned(pictures, budget=given.budgets[len(given.budgets) // 2])
    best = best_of(tuning, start=OWN)
    rate, decay = best["learning_rate"], best_of(tuning)["weight_decay"]
    private = private_rates(case)
    rows: dict[Any, Row] = {}
    originals: list[float] = []

    def scored(key: Any, row: Row, accuracy: float) -> None:
        rows.setdefault(key, row | {"accuracies": []})["accuracies"].append(accuracy)

    for seed in range(given.seeds):
        compared = Case(
            pictures, recipe_of(rate, decay), seed=seed, start=starts_of("features")[OWN]
        )
        originals.append(compared.train_original(epochs=given.original_epochs))
        for budget in given.budgets:
            for arm in arms():
                try:
                    outcome = compared.run(arm, budget=budget)
                except PlanError:  # the budget is too small for the mechanism
                    continue
                accuracy = outcome.pop("accuracy")
                scored((budget, arm), {"budget_epochs": budget, **asdict(arm), **outcome}, accuracy)
        for name, accuracy, passes in beside(case, seed, private):
            scored(name, {"method": name, "passes": passes}, accuracy)
        for row in rows.values():
            row["mean"], row["standard_error"] = harness.mean_and_error(row["accuracies"])
        yield {
            "note": case.note,
            "records": len(case.train),
            "tested": len(case.test),
            "repeats": seed + 1,
            "tuning": tuning,
            "learning_rate": rate,
            "weight_decay": decay,
            "private_rates": [[*key, value] for key, value in private.items()],
            "original_accuracies": originals,
            "rows": [row for row in rows.values() if "budget_epochs" in row],
            "beside": [row for row in rows.values() if "passes" in row],
            "wall_s": round(time.perf_counter() - started, 1),
        }


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write and draw."""
    options = {
        "--quick": {"action": "store_true", "help": "small digits, in seconds"},
        "--cache": {"type": Path, "default": default_cache(), "help": "of the features"},
        "--budgets": {"type": float, "nargs": "+", "default": [1, 2, 5, 10, 20], "help": "epochs"},
        "--seeds": {"type": int, "default": 5},
        "--original-epochs": {"type": float, "default": 20.0},
        "--passes": {"type": int, "default": PASSES, "help": "of ensembles and DP-SGD"},
    }
    harness.main("frozen_backbone", __doc__, run, options=options, arguments=arguments)


if __name__ == "__main__":
    main()

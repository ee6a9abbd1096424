"""Koloskova et al. 2025, Figure 3, with what rivals do: ``python -m benchmarks.frozen_backbone``.

The paper's head of three layers on a frozen public backbone, CIFAR-10: EfficientNet-Lite0 stands
for its ResNet-18, on pictures at 96 pixels, a tenth of which is forgotten. Noisy mechanisms are
truly at (epsilon, 1e-5), as in ``benchmarks.unlearning_vs_retraining``, which tunes retraining.
Beside them a tenth leaves a ridge head, a softmax head and an ensemble of eight, every member of
which is concerned; it is scored with members left out, too, which is how it answers single people.
DP-SGD (``benchmarks.private_training``) is trained at (epsilon, 1e-5) for a group, on all records,
at the better of two rates on held-out ones; the paper's is at epsilon 50 for 0.5 % of the records.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from app.domain.architectures import ArchitectureSpec
from benchmarks import ensembles_cases, harness
from benchmarks.convex import service_head, softmax_minimum
from benchmarks.data import CLASSES, Pictures, network_of
from benchmarks.ensembles import ridge_head
from benchmarks.leaving_out import Ensemble
from benchmarks.private_training import plan_of, privately
from benchmarks.public_features import default_cache
from benchmarks.unlearning_vs_retraining import (
    FORGOTTEN_SHARE,
    METHODS,
    RETRAINING,
    Arm,
    cell,
    measure,
    panel,
)

HEAD: Final = ArchitectureSpec("mlp", {"hidden": [32, 32]})
EPSILONS: Final = (0.1, 1.0, 10.0)
GROUP: Final = 0.005  # of the records
MEMBERS: Final = 8
_SOFTMAX: Final = {"regularisation": 1e-5, "tolerance": 7e-4}
_RATES: Final = (0.1, 0.5)  # of DP-SGD

Row = dict[str, Any]
Private = tuple[float, int]  # epsilon, and for groups of how many


def arms() -> Iterator[Arm]:
    """Yield retraining, each noisy mechanism at each epsilon, and at 1 from a random start.

    What the noise ends with is the frame's scale at each epsilon, so one start serves all.
    """
    yield Arm(RETRAINING)
    for method in METHODS[1:]:
        yield from (Arm(method, epsilon=epsilon) for epsilon in EPSILONS)
        yield Arm(method, control=True)


def beside(
    case: ensembles_cases.Case, seed: int, *, private: Mapping[Private, float]
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
    order = np.random.default_rng(0).permutation(len(case.train))
    held_out, rest = np.split(order, [len(order) // 10])
    inner = replace(case, train=case.train.select(rest), test=case.train.select(held_out))
    score = partial(_private_score, inner)
    return {
        each: max(_RATES, key=partial(score, each))
        for each in ((1.0, 1), (10.0, group), (50.0, group))
    }


def _private_score(case: ensembles_cases.Case, private: Private, rate: float) -> float:
    epsilon, group = private
    plan = plan_of(case, group, epsilon=epsilon, learning_rate=rate)
    network, _ = privately(case, plan)
    return network.evaluate(case.test).score


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures so far after every repeat."""
    torch.set_num_threads(1)
    known = (
        ensembles_cases.digits(public=False)
        if given.quick
        else ensembles_cases.head(cache=given.cache)
    )
    chosen = np.arange(min(len(known.train), given.records))
    recipe = replace(known.recipe, epochs=given.passes)
    case = replace(known, train=known.train.select(chosen), person=chosen, recipe=recipe)
    case = replace(case, random=partial(network_of, HEAD, case.train))
    note = f"{len(chosen):,} of {case.note.partition(';')[0]}, as the public network sees them"
    pictures = Pictures("features", HEAD, case.train, case.test, note)
    private = private_rates(case)
    rates = [[*key, rate] for key, rate in private.items()]
    others: dict[str, Row] = {}
    how = {"schedule": "one_cycle", "arms": lambda _: arms()}
    for seed, found in enumerate(measure(pictures, given, **how)):
        for name, accuracy, passes in beside(case, seed, private=private):
            row = others.setdefault(name, {"method": name, "passes": passes, "accuracies": []})
            row["accuracies"].append(accuracy)
            row["mean"], row["standard_error"] = harness.mean_and_error(row["accuracies"])
        more = {"beside": [*others.values()], "passes": given.passes, "private_rates": rates}
        yield found | more


def table(document: dict[str, Any]) -> str:
    """Return accuracies by budget, and below them those of what needs none."""
    budgets = list(dict.fromkeys(row["budget_epochs"] for row in document["rows"]))
    lines: dict[str, list[str]] = {}
    for row in document["rows"]:
        lines.setdefault(_name(row), []).append(cell(row))
    rows = [(name, *cells) for name, cells in lines.items()]
    blank = [""] * (len(budgets) - 1)
    rows += [(row["method"], *blank, cell(row)) for row in document["beside"]]
    return harness.table(
        " | ".join(["method, after so many epochs", *map("{:g}".format, budgets)]), rows
    )


def _name(row: Row) -> str:
    method = row["method"].replace("_", " ")
    if row["method"] == RETRAINING:
        return method
    return f"{method}, " + ("a random start" if row["control"] else f"ε = {row['epsilon']:g}")


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw accuracy against budget at epsilon 1, and beside it all else."""
    rows = document["rows"]
    last = max(row["budget_epochs"] for row in rows)
    with harness.picture(path, (14, 5), columns=2) as (_, ((curves, bars),)):
        panel(curves, [row for row in rows if row["epsilon"] == 1])
        shown = [*document["beside"], *(row for row in rows if row["budget_epochs"] == last)][::-1]
        names = [row["method"] if "passes" in row else _name(row) for row in shown]
        errors = [100 * (row["standard_error"] or 0) for row in shown]
        bars.barh(names, [100 * row["mean"] for row in shown], xerr=errors)
        bars.set_xlabel(f"test accuracy, %; with a budget, after {last:g} epochs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    options = {
        "--quick": {"action": "store_true", "help": "small digits, in seconds"},
        "--cache": {"type": Path, "default": default_cache(), "help": "of the features"},
        "--budgets": {"type": float, "nargs": "+", "default": [1, 5, 20], "help": "epochs"},
        "--records": {"type": int, "default": 5_000, "help": "to train on"},
        "--seeds": {"type": int, "default": 5},
        "--original-epochs": {"type": float, "default": 10.0},
        "--passes": {"type": int, "default": 10, "help": "of ensembles and DP-SGD"},
    }
    how: Row = {"options": options, "table": table, "figure": figure, "arguments": arguments}
    harness.main("frozen_backbone", __doc__, run, **how)


if __name__ == "__main__":
    main()

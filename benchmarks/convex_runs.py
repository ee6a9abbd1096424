"""Lineages run and measured: what the benchmarks of sequential requests share."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

import torch

from app.accounting.terms import Neighbours
from benchmarks import harness
from benchmarks.convex import Case, Lineage
from benchmarks.convex_methods import Method, Target, tracked
from workers.mechanisms.descent import Descent

RELEASE_NOISE: Final = 0.05
SWEEP: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
_NOISE_SEEDS: Final = 1000
_NOISE_DRAWS: Final = 20
_LEAST: Final = 100  # where a logarithmic axis puts a cost of nothing
_SOURCES: Final = {"published": "--X", "ours": "-o", "exact": ":s"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one lineage cost in per-record gradients, of training and of all requests, and scored.

    Accuracies are those after each request that was really run, in order. ``lost_to_noise`` is what
    the trained weights lose to one release's noise, where it was asked.
    """

    training_gradients: int
    gradients: int
    steps: tuple[int, ...]
    trained_accuracy: float
    accuracies: tuple[float, ...]
    lost_to_noise: float | None = None


Labelled = tuple[Row, Outcome]


class Trainings:
    """The trained lineages of one case and seed; methods with the same recipe share one."""

    def __init__(self, case: Case, *, seed: int, epochs: int, full_batch_steps: int = 0) -> None:
        self._case = case
        self._seed = seed
        self._epochs = epochs
        self._full_batch_steps = full_batch_steps
        self._done: dict[tuple[Descent, int], Lineage] = {}

    def start(self, method: Method, target: Target) -> Lineage:
        """Return the method's lineage before its first request; it must not be changed."""
        batch_size = method.batch_size or self._case.records
        recipe = self._case.recipe(
            batch_size=batch_size, neighbours=method.neighbours, longest_step=method.longest_step
        )
        descent = Descent(
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            noise_std=method.step_noise_std(self._case, target) if method.step_noise_std else 0.0,
            radius=method.radius,
        )
        key = (descent, batch_size)
        if key not in self._done:
            lineage = Lineage(self._case, recipe, descent, seed=self._seed)
            epochs = self._epochs * recipe.batches
            lineage.train(epochs if method.batch_size else self._full_batch_steps)
            self._done[key] = lineage
        return self._done[key]


def answer(
    case: Case,
    method: Method,
    target: Target,
    start: Lineage,
    *,
    requests: int,
    records: int,
    seed: int,
) -> Outcome:
    """Answer ``requests`` requests for ``records`` records each, one after the other."""
    lineage = start.branch(neighbours=method.neighbours, noise_seed=_NOISE_SEEDS + seed)
    steps, accuracies = list[int](), list[float]()
    for request in range(1, requests + 1):
        lineage.forget(records)
        plan = method.plan(case, lineage.history, tuple(steps), target)
        really = method.simulates(request, requests)
        lineage.run(plan, epsilon=target.epsilon, at_most=method.at_most if really else 0)
        steps.append(plan.steps)
        if really:
            accuracies.append(lineage.accuracy())
    return Outcome(
        training_gradients=lineage.training_gradients,
        gradients=lineage.gradients,
        steps=tuple(steps),
        trained_accuracy=start.accuracy(),
        accuracies=tuple(accuracies),
    )


@dataclass(frozen=True)
class Comparison:
    """How much is run.

    Attributes:
        methods: of a case; ``tracked release`` is among them.
        epsilons: the targets, at delta = 1/n.
        epochs: of training.
        requests, records: how many in a row, and how many records each names.
        full_batch_steps: of training on all records at once.
        sweep: release noises of it at epsilon 1.
    """

    methods: Callable[[Case], list[Method]]
    epsilons: tuple[float, ...]
    epochs: int
    requests: int = 100
    records: int = 1
    full_batch_steps: int = 0
    sweep: tuple[float, ...] = SWEEP

    def tables(self, case: Case, seed: int) -> dict[str, list[Labelled]]:
        """Return every row of one seed; exact rows are run once, whatever the target."""
        trainings = Trainings(
            case, seed=seed, epochs=self.epochs, full_batch_steps=self.full_batch_steps
        )
        return {
            "rows": list(self._rows(case, trainings, seed)),
            "release_noise": list(self._release_noise(case, trainings, seed)),
        }

    def _answer(
        self, case: Case, method: Method, epsilon: float, trainings: Trainings, seed: int
    ) -> Outcome:
        target = Target(epsilon, case.delta)
        start = trainings.start(method, target)
        many = {"requests": self.requests, "records": self.records, "seed": seed}
        return answer(case, method, target, start, **many)

    def _rows(self, case: Case, trainings: Trainings, seed: int) -> Iterator[Labelled]:
        for method in self.methods(case):
            exact = method.source == "exact"
            relation = "any_start" if exact else Neighbours(method.neighbours)
            described = {
                "method": method.name,
                "source": method.source,
                "neighbours": relation,
                "batch_size": method.batch_size or "all",
            }
            for epsilon in self.epsilons[:1] if exact else self.epsilons:
                outcome = self._answer(case, method, epsilon, trainings, seed)
                for reached in self.epsilons if exact else (epsilon,):
                    yield described | {"epsilon": reached}, outcome

    def _release_noise(self, case: Case, trainings: Trainings, seed: int) -> Iterator[Labelled]:
        method = next(each for each in self.methods(case) if each.name == "tracked release")
        start = trainings.start(method, Target(1.0, case.delta))
        for noise_std in self.sweep:
            variant = replace(method, plan=tracked(noise_std))
            outcome = self._answer(case, variant, 1.0, trainings, seed)
            lost = start.lost_to_noise(noise_std, draws=_NOISE_DRAWS)
            yield {"release_noise_std": noise_std}, replace(outcome, lost_to_noise=lost)


def of_all_seeds(
    one_seed: Callable[[int, Comparison], list[dict[str, Any]]],
    comparison: Comparison,
    given: Namespace,
) -> list[dict[str, Any]]:
    """Return every case with its tables, combined over ``--seeds``."""
    job = partial(one_seed, comparison=replace(comparison, requests=given.requests))
    with ProcessPoolExecutor(
        given.processes, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        seeds = list(pool.map(job, range(given.seeds)))
    return [
        same[0]
        | {name: combined([each[name] for each in same]) for name in ("rows", "release_noise")}
        for same in zip(*seeds, strict=True)
    ]


OPTIONS: Final = {
    "--seeds": {"type": int, "default": 3},
    "--processes": {"type": int, "default": 2},
    "--requests": {"type": int, "default": 100},
}


def combined(seeds: Sequence[list[Labelled]]) -> list[Row]:
    """Return the rows of several seeds as one table."""
    return [
        same[0][0] | _summary([outcome for _, outcome in same]) for same in zip(*seeds, strict=True)
    ]


def _summary(rows: Sequence[Outcome]) -> Row:
    """Return the figures of one row: means over seeds, with their standard deviations."""
    figures = {
        "training_gradients": [row.training_gradients for row in rows],
        "gradients": [row.gradients for row in rows],
        "steps_per_request": [mean(row.steps) for row in rows],
        "most_steps": [max(row.steps) for row in rows],
        "trained_accuracy": [row.trained_accuracy for row in rows],
        "final_accuracy": [row.accuracies[-1] for row in rows],
        "mean_accuracy": [mean(row.accuracies) for row in rows],
    }
    table: Row = {name: mean(values) for name, values in figures.items()}
    for name in ("gradients", "final_accuracy", "mean_accuracy"):
        table[f"{name}_std"] = stdev(figures[name]) if len(rows) > 1 else 0.0
    lost = [row.lost_to_noise for row in rows if row.lost_to_noise is not None]
    return table | ({"lost_to_noise": mean(lost)} if lost else {}) | {"seeds": len(rows)}


def table(document: dict[str, Any]) -> str:
    """Return what each method costs and scores at epsilon 1."""
    cases = document.get("cases", [document])
    rows = (
        (
            *((case["case"],) if "case" in case else ()),
            f"{row['method']}{' as published' if row['source'] == 'published' else ''}",
            row["neighbours"].replace("_", " "),
            f"{row['gradients']:,.0f}",
            f"{row['final_accuracy']:.1%}",
        )
        for case in cases
        for row in case["rows"]
        if row["epsilon"] == 1.0
    )
    columns = "method | relation | gradients | accuracy"
    return harness.table(f"case | {columns}" if "cases" in document else columns, rows)


def figure(document: dict[str, Any], path: Path) -> Path:
    """Draw of each case, in a row, cost against epsilon, accuracy against cost, release noise."""
    cases = document.get("cases", [document])
    size = (19, 5.5 * len(cases) + 2)
    with harness.picture(path, size, len(cases), 3, bottom=1.5 / size[1]) as (picture, axes):
        for line, case in zip(axes, cases, strict=True):
            _costs(line[0], line[1], case["rows"])
            _noise_curve(line[2], case["release_noise"])
            name = case.get("case", document["data"])
            line[0].set_title(f"{name}, n = {case['records']}, λ = {case['weight_decay']:g}")
            line[1].set_title("accuracy against cost at ε = 1")
            line[2].set_title("tracked release at ε = 1: what its noise costs")
        each = document.get("records_per_request", 1)
        picture.suptitle(
            f"{document['requests']} requests in a row, records in each: {each}, {document['data']}"
        )
        handles, labels = axes[0][0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="lower center", ncols=4, fontsize=9)
    return path


def _costs(cost: Any, score: Any, rows: Iterable[Row]) -> None:
    def key(row: Row) -> tuple[str, ...]:
        return row["source"], row["method"], row["neighbours"]

    colours: dict[str, str] = {}
    for (source, method, relation), group in groupby(rows, key):
        shown = [row | {"gradients": max(_LEAST, row["gradients"])} for row in group]
        name = f"{method}, {relation.replace('_', ' ')} ({source})"
        how: dict[str, Any] = {
            "color": colours.setdefault(method, f"C{len(colours) % 10}"),
            "markerfacecolor": "white" if relation == "replacement" else None,
        }
        harness.plot(cost, shown, "epsilon", "gradients", _SOURCES[source], label=name, **how)
        at_one = [row for row in shown if row["epsilon"] == 1.0]
        marker = _SOURCES[source][-1]
        harness.plot(
            score, at_one, "gradients", "mean_accuracy", marker, error="mean_accuracy_std", **how
        )
    cost.set(xscale="log", yscale="log", xlabel="ε at δ = 1/n", ylabel="gradients, all requests")
    score.set(xscale="log", xlabel="gradients, all requests")
    score.set(ylabel="mean test accuracy after a request")


def _noise_curve(axis: Any, rows: Sequence[Row]) -> None:
    """Draw what requests in a row score, and what one release alone would."""
    noise = "release_noise_std"
    alone = [row | {"alone": row["trained_accuracy"] - row["lost_to_noise"]} for row in rows]
    harness.plot(
        axis,
        rows,
        noise,
        "mean_accuracy",
        "-oC3",
        error="mean_accuracy_std",
        label="mean over requests",
    )
    harness.plot(axis, alone, noise, "alone", "-vC7", label="one release of the trained head")
    trained = rows[0]["trained_accuracy"]
    axis.axhline(trained, color="C7", linestyle=":", label="the trained head, no noise")
    axis.set(xscale="log", xlabel="release noise per coordinate", ylabel="mean test accuracy")
    axis.legend(fontsize=9, loc="lower left")

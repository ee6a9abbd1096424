"""Chien et al. 2024, Figure 3, run again: ``python -m benchmarks.chien_figures``.

MNIST 3 against 8, and cats against ships of CIFAR-10 on public features of EfficientNet-Lite0,
which stands for the paper's ResNet-18. (a) One request at (epsilon, 1/n) in one epoch, or in a step
or five: each bound's least noise, and the accuracy. (b) 100 records forgotten one after the other,
or by 5, 10 and 20 together for Langevin unlearning, at (1, 1/n): epochs of gradients, all planned,
certified and counted; ours are run, of others the last request. (c) The same at (0.01, 1/n) by
batch size and sigma: epochs by the paper's count and from the drift, and the accuracy. The paper's
relation is replacement; in (b) ours have ``zero_out`` too. With glibc, batches of all records are
twice as fast with MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=8000000000.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.published import chien, full_batch, neel
from app.accounting.search import smallest_noise
from app.accounting.terms import Neighbours
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks import convex_runs as by
from benchmarks import harness
from benchmarks.calibration import calibrate
from benchmarks.convex import Case, Plan, two_digits
from benchmarks.data import load
from benchmarks.public_features import cat_or_ship, default_cache
from benchmarks.published_tables import Problem, authors_epochs, our_steps

EPSILONS: Final = (0.05, 0.1, 0.5, 1.0, 2.0, 5.0)
NOISE_SCALES: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
BATCHES: Final = (1, 32, 128, 512, 0)  # 0: all records
SMALL_EPSILON: Final = 0.01
REQUESTS: Final = 100
STEPS: Final = 600  # of training: the start has shrunk by 4e-12
FULL_STEPS: Final = 150  # on all records at once: by 1e-3
BATCH: Final = 128
TRAINED: Final = {BATCH: 20, 0: 1000}  # epochs, the paper's Table 2
_GROUPS: Final = (5, 10, 20)
_MARKERS: Final = {"published": "X", "ours": "o", "exact": "s"}
_LEAST: Final = 0.01  # epochs, where a logarithmic axis puts what costs nothing
_LAST: Final[dict[str, int]] = {"simulated_last": 1, "at_most": FULL_STEPS}
_SMALL_NOISE: Final = 0.02  # of a step, well below the paper's
_STYLES: Final = ("C3v-", "C3v:", "C1^-", "ko-", "ks--", "C0D-")  # by name

Row = dict[str, Any]
Bound = Callable[..., Guarantee]
Way = tuple[float, by.Method]


def ways(case: Case, target: by.Target) -> dict[str, Way]:
    """Return the paper's ways, and ours, to answer one request: each with its least noise."""
    wanted = target._asdict()
    theirs = partial(by.Method, "published", neighbours=Neighbours.REPLACEMENT)
    records: Row = case.constants | {"records": case.records}
    once = records | {"steps": 1, "forgotten": 1}

    def noisy(batch: int, steps: int, bound: Bound, radius: float | None = None) -> Way:
        scale = calibrate(bound, **wanted)
        noise = by.step_noise_std(case, scale)
        plan = Plan(steps, account=lambda _: bound(noise_scale=scale))
        return noise, theirs(batch, lambda *_: plan, step_noise_std=noise, radius=radius)

    def projected(batch: int) -> Way:
        size = batch or case.records
        setting = by.papers_setting(case, size) | {"training_epochs": TRAINED[batch], "epochs": 1}
        return noisy(batch, case.records // size, partial(chien.theorem_3_2, **setting), by.RADIUS)

    def to_descent(steps: int) -> Way:
        setting: Row = records | {"delta": case.delta, "steps": steps}
        del setting["learning_rate"]
        noise = calibrate(neel.theorem_9, **setting, epsilon=target.epsilon)
        plan = Plan(steps, lambda _: neel.theorem_9(**setting, noise_std=noise), noise)
        return noise, theirs(0, lambda *_: plan, longest_step=True)

    def tracked() -> Way:
        recipe = case.recipe(batch_size=BATCH, neighbours=Neighbours.REPLACEMENT)
        steps, worst = recipe.batches, History(recipe).after_steps(STEPS, noise_std=0.0)
        worst = worst.after_release().after_request({(STEPS - 1) % steps: 1})

        def account(history: History, noise: float) -> Guarantee:
            accountant = HistoryAccountant(history, TrackedRelease.terms)
            return accountant.guarantee(steps=steps, release_noise_std=noise)

        least = smallest_noise(lambda each: account(worst, each).meets(**wanted), scale=1e-3)

        def plan(_: Case, history: History, *__: object) -> Plan:
            return Plan(steps, lambda _: account(history, least), least)

        return least, replace(theirs(BATCH, plan), source="ours")

    return {
        f"projected noisy SGD, b = {BATCH}": projected(BATCH),
        "projected noisy SGD, b = n": projected(0),
        "Langevin unlearning": noisy(0, 1, partial(full_batch.chien_theorem_p_2, **once)),
        "Delete-to-Descent, 1 step, secret state": to_descent(1),
        "Delete-to-Descent, 5 steps, secret state": to_descent(5),
        f"tracked release, b = {BATCH}, ours": tracked(),
    }


def measured(
    method: by.Method, target: by.Target, trainings: Sequence[by.Trainings], **asked: int
) -> Row:
    """Return the accuracy after the last request, its error, and epochs of gradients for all."""
    case = trainings[0].case
    if method.source == "published":
        method = replace(method, plan=_once(method.plan))
    outcomes = [
        by.answer(case, method, target, training.start(method), **asked, seed=seed)
        for seed, training in enumerate(trainings)
    ]
    accuracy, error = harness.mean_and_error([outcome.accuracies[-1] for outcome in outcomes])
    steps = fmean(sum(outcome.steps) for outcome in outcomes)
    epochs = steps * (method.batch_size or case.records) / case.records
    return {"accuracy": accuracy, "error": error, "epochs": epochs}


def one_request(case: Case, trainings: Sequence[by.Trainings]) -> Iterator[Row]:
    """Yield Figure 3a."""
    for epsilon in EPSILONS:
        target = by.Target(epsilon, case.delta)
        for name, (noise, method) in ways(case, target).items():
            row: Row = {"method": name, "epsilon": epsilon, "noise": noise}
            yield row | measured(method, target, trainings, requests=1, records=1)


def methods(case: Case) -> Iterator[tuple[str, int, by.Method]]:
    """Yield the ways of Figure 3b, ours and retraining, and how many records leave together."""
    batch = BATCH if case.records > 1000 else 32
    theirs = partial(by.Method, "published", neighbours=Neighbours.REPLACEMENT, **_LAST)
    noise = by.step_noise_std(case, by.PAPER_NOISE_SCALE)
    for name, size in {f"b = {batch}": batch, "b = n": 0}.items():
        plan = by.projected_noisy_sgd_epochs(by.PAPER_NOISE_SCALE)
        projected = theirs(size, plan, step_noise_std=noise, radius=by.RADIUS)
        yield f"projected noisy SGD, {name}", 1, projected
    yield "Delete-to-Descent", 1, theirs(0, by.delete_to_descent, longest_step=True)
    for count in (1, *_GROUPS):
        langevin = theirs(0, by.langevin, step_noise_std=noise)
        yield f"Langevin unlearning, {count} together", count, langevin
    small = by.noisy_steps(_SMALL_NOISE)
    released = by.tracked(by.RELEASE_NOISE)
    for relation in (Neighbours.REPLACEMENT, Neighbours.ZERO_OUT):
        ours = partial(by.Method, "ours", neighbours=relation)
        for size in sorted({batch, 32}, reverse=True):
            yield f"tracked release, b = {size}", 1, ours(size, released)
        less = ours(batch, small, step_noise_std=_SMALL_NOISE)
        yield "projected noisy SGD, σ = 0.007", 1, less
    for name, steps in {"1 epoch": case.records // batch, "20 steps": 20}.items():
        yield f"retraining, {name}", 1, by.Method("exact", batch, by.retrained(steps), **_LAST)


def in_a_row(case: Case, trainings: Sequence[by.Trainings]) -> Iterator[Row]:
    """Yield Figure 3b: epochs of gradients for all requests, and accuracy after the last."""
    for name, together, method in methods(case):
        row: Row = {"method": name, "source": method.source, "records_together": together}
        row["neighbours"] = "any_start" if method.source == "exact" else str(method.neighbours)
        many = {"requests": REQUESTS // together, "records": together}
        yield row | measured(method, by.Target(1.0, case.delta), trainings, **many)


def _once(plan: by.Planner) -> by.Planner:
    """Return a planner that plans once where only the earlier steps and the number count."""
    plans: dict[tuple[tuple[int, ...], int], Plan] = {}

    def planned(case: Case, history: History, earlier: tuple[int, ...], target: by.Target) -> Plan:
        key = earlier, history.forgotten()
        plans[key] = plans.get(key) or plan(case, history, earlier, target)
        return plans[key]

    return planned


def by_batch_and_noise(case: Case, trainings: Sequence[by.Trainings]) -> Iterator[Row]:
    """Yield Figures 3c and 3d."""
    target = by.Target(SMALL_EPSILON, case.delta)
    problem = Problem(case.records, case.constants, *target, REQUESTS)
    theirs = partial(by.Method, "published", neighbours=Neighbours.REPLACEMENT, radius=by.RADIUS)
    for batch in (each for each in BATCHES if each <= case.records):
        for scale in NOISE_SCALES:
            of: Row = {"batch_size": batch or case.records, "noise_scale": scale}
            plan, noise = by.projected_noisy_sgd_epochs(scale), by.step_noise_std(case, scale)
            method = theirs(batch, plan, step_noise_std=noise, **_LAST)
            found = measured(method, target, trainings, requests=REQUESTS, records=1)
            ours = sum(our_steps(problem, **of, neighbours=Neighbours.REPLACEMENT))
            found["epochs_ours"] = ours * of["batch_size"] / case.records
            yield of | found | {"epochs_published": sum(authors_epochs(problem, **of))}


PARTS: Final = {part.__name__: part for part in (in_a_row, one_request, by_batch_and_noise)}


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield a case after the other, a part at a time; what else is in the results stays."""
    torch.set_num_threads(1)
    document = harness.earlier(given)
    known = {each["case"]: each for each in document.get("cases", ())}
    makers: dict[str, Callable[[], Case]] = {
        "mnist": lambda: two_digits(load("mnist", stand_in=False)),
        "cifar10": lambda: cat_or_ship(given.cache),
        "digits": lambda: two_digits(load("digits")),
    }
    for name in given.case:
        case = makers[name]()
        how = {"epochs": -(-STEPS * BATCH // case.records), "least": FULL_STEPS, "most": STEPS}
        trainings = [by.Trainings(case, seed=seed, **how) for seed in range(given.seeds)]
        row = {"case": case.name, "records": case.records, "weight_decay": case.weight_decay}
        found = known.setdefault(case.name, row | dict.fromkeys(PARTS, ()))
        for part in given.part:
            found[part] = list(PARTS[part](case, trainings))
            found.setdefault("repeats", {})[part] = given.seeds
            yield document | {"requests": REQUESTS, "cases": list(known.values())}


def _by(rows: Sequence[Row], key: str) -> list[tuple[Any, list[Row]]]:
    groups = groupby(sorted(rows, key=itemgetter(key)), itemgetter(key))
    return [(value, list(some)) for value, some in groups]


def figure(document: dict[str, Any], path: Path) -> Path:
    """Draw Figures 3a, 3b, 3c and 3d, a row for each data set."""
    cases = document["cases"]
    with harness.picture(path, (28, 7 * len(cases)), len(cases), 4) as (_, axes):
        for (one, row, noisy, cost), case in zip(axes, cases, strict=True):
            for style, (name, some) in zip(
                _STYLES, _by(case["one_request"], "method"), strict=False
            ):
                harness.plot(one, some, "epsilon", "accuracy", style, error="error", label=name)
            for number, each in enumerate(case["in_a_row"]):
                spent = {"epochs": max(_LEAST, each["epochs"])}
                face = "white" if each["neighbours"] == "replacement" else None
                how: Row = {"color": f"C{number % 10}", "markerfacecolor": face, "error": "error"}
                how["label"] = f"{each['method']}, {each['neighbours']} ({each['source']})"
                style = _MARKERS[each["source"]]
                harness.plot(row, [each | spent], "epochs", "accuracy", style, **how)
            for number, (size, some) in enumerate(_by(case["by_batch_and_noise"], "batch_size")):
                how = {"color": f"C{number}", "label": f"b = {size}"}
                harness.plot(noisy, some, "noise_scale", "accuracy", "o-", error="error", **how)
                for key, style in (("epochs_published", "o-"), ("epochs_ours", "s--")):
                    how["label"] = f"b = {size}, {key.removeprefix('epochs_')}"
                    harness.plot(cost, some, "noise_scale", key, style, **how)
            cost.set_yscale("log")
            for axis, x, y, title in (
                (one, "ε", "test accuracy", f"(a) {case['case']}"),
                (row, "epochs, 100 records", "test accuracy", "(b) ε = 1"),
                (noisy, "σ", "test accuracy", "(c) ε = 0.01"),
                (cost, "σ", "epochs", "(d) ε = 0.01"),
            ):
                axis.set(xscale="log", xlabel=x, ylabel=y, title=title)
                axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return path


if __name__ == "__main__":
    options = {
        "--case": {"nargs": "+", "default": ["mnist", "cifar10"], "help": "or digits"},
        "--part": {"nargs": "+", "choices": PARTS, "default": [*PARTS]},
        "--cache": {"type": Path, "default": default_cache(), "help": "of the features"},
        "--seeds": {"type": int, "default": 5},
    }
    harness.main("chien_figures", __doc__, run, options=options, figure=figure)

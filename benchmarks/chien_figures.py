"""Chien et al. 2024, Figure 3, run again: ``python -m benchmarks.chien_figures``.

MNIST 3 against 8, and cats against ships of CIFAR-10 on public features of EfficientNet-Lite0,
which stands for the paper's ResNet-18. (a) One request at (epsilon, 1/n) in one epoch, or in a step
or five: each bound's least noise, and the accuracy. (b) 100 records forgotten one after the other,
or by 5, 10 and 20 together for Langevin unlearning, at (1, 1/n): epochs of gradients, all planned,
certified and counted, of which the last request is run. (c) The same at (0.01, 1/n) by batch
size and sigma: epochs by the paper's count and from the drift, and the accuracy. The paper's
relation is replacement; in (b) ours have ``zero_out`` too.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.published import chien, full_batch, neel
from app.accounting.search import smallest_noise
from app.accounting.terms import Neighbours
from app.domain.errors import CalibrationError
from app.planning.mechanisms.tracked_release import TrackedRelease
from benchmarks import convex_runs as by
from benchmarks import harness
from benchmarks.calibration import calibrate, noise_std_of
from benchmarks.convex import Case, Lineage, Plan, two_digits
from benchmarks.data import load
from benchmarks.public_features import cat_or_ship, default_cache
from benchmarks.published_tables import Problem, authors_epochs, our_steps
from workers.mechanisms.descent import Descent

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
_STYLES: Final = ("ko-", "ks--", "C1^-", "C3v-", "C3v:", "C0D-")

Row = dict[str, Any]


class Noise(NamedTuple):
    """A way to answer one request: what it adds, and its guarantee with so much noise."""

    batch: int
    steps: int
    account: Callable[[], Guarantee]
    step_noise: float = 0.0
    release_noise: float = 0.0


def ways(case: Case, epsilon: float) -> Iterator[tuple[str, Callable[[], Noise]]]:
    """Yield the paper's ways, and ours, to answer one request."""
    target = {"epsilon": epsilon, "delta": case.delta}

    def projected(batch: int) -> Noise:
        size = batch or case.records
        setting = by.papers_setting(case, size) | {"training_epochs": TRAINED[batch], "epochs": 1}
        scale = calibrate(chien.theorem_3_2, **target, **setting)
        known = partial(chien.theorem_3_2, **setting, noise_scale=scale)
        return Noise(batch, case.records // size, known, by.step_noise_std(case, scale))

    def langevin() -> Noise:
        setting: Row = case.constants | {"records": case.records, "steps": 1, "forgotten": 1}
        scale = calibrate(full_batch.chien_theorem_p_2, **target, **setting)
        known = partial(full_batch.chien_theorem_p_2, **setting, noise_scale=scale)
        return Noise(0, 1, known, by.step_noise_std(case, scale))

    def to_descent(steps: int) -> Noise:
        setting: Row = case.constants | {"delta": case.delta, "records": case.records}
        del setting["learning_rate"]
        noise = calibrate(neel.theorem_9, epsilon=epsilon, steps=steps, **setting)
        known = partial(neel.theorem_9, **setting, steps=steps, noise_std=noise)
        return Noise(0, steps, known, release_noise=noise)

    def tracked() -> Noise:
        recipe = case.recipe(batch_size=BATCH, neighbours=Neighbours.REPLACEMENT)
        history = History(recipe).after_steps(TRAINED[BATCH] * recipe.batches, noise_std=0.0)
        history = history.after_release().after_request({recipe.batches - 1: 1})
        accountant = HistoryAccountant(history, TrackedRelease.terms)
        made = partial(accountant.guarantee, steps=recipe.batches)
        noise = smallest_noise(
            lambda each: made(release_noise_std=each).meets(**target), scale=1e-3
        )
        known = partial(made, release_noise_std=noise)
        return Noise(BATCH, recipe.batches, known, release_noise=noise)

    yield f"projected noisy SGD, b = {BATCH}", partial(projected, BATCH)
    yield "projected noisy SGD, b = n", partial(projected, 0)
    yield "Langevin unlearning", langevin
    yield "Delete-to-Descent, 1 step, secret state", partial(to_descent, 1)
    yield "Delete-to-Descent, 5 steps, secret state", partial(to_descent, 5)
    yield f"tracked release, b = {BATCH}, ours", tracked


def accuracy(
    case: Case, batch: int, *, noises: tuple[float, float], steps: int, seed: int
) -> float:
    """Return the accuracy after training, one request, so many steps and a release."""
    step_noise, release_noise = noises
    recipe = case.recipe(
        batch_size=batch or case.records,
        neighbours=Neighbours.REPLACEMENT,
        longest_step=bool(release_noise) and not batch,
    )
    rates = {"learning_rate": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    radius = by.RADIUS if step_noise else None
    descent = Descent(**rates, noise_std=step_noise, radius=radius)
    most = STEPS if batch else FULL_STEPS
    lineage = Lineage(case, recipe, descent, seed=seed)
    lineage.train(most)
    lineage.forget(1)
    lineage.take(min(steps, most))
    lineage.add_noise(release_noise)
    return lineage.accuracy()


def one_request(case: Case, seeds: int) -> Iterator[Row]:
    """Yield Figure 3a."""
    for epsilon in EPSILONS:
        for name, way in ways(case, epsilon):
            try:
                noise = way()
            except CalibrationError:
                continue
            harness.require(noise.account().meets(epsilon=epsilon, delta=case.delta), "it is met")
            noises = noise.step_noise, noise.release_noise
            how: Row = {"noises": noises, "steps": noise.steps}
            scores = [accuracy(case, noise.batch, **how, seed=seed) for seed in range(seeds)]
            mean, error = harness.mean_and_error(scores)
            epochs = noise.steps * (noise.batch or case.records) / case.records
            row = {"method": name, "epsilon": epsilon, "noise": max(noises), "epochs": epochs}
            yield row | {"accuracy": mean, "error": error}


def methods(case: Case) -> Iterator[tuple[str, int, by.Method]]:
    """Yield the ways of Figure 3b, ours and retraining, and how many records leave together."""
    batch = BATCH if case.records > 1000 else 32
    cycle = case.records // batch
    last: Row = {"simulated_last": 1, "at_most": FULL_STEPS}
    theirs = partial(by.Method, source="published", neighbours=Neighbours.REPLACEMENT, **last)
    noisy: Row = {"step_noise_std": by.papers_noise, "radius": by.RADIUS}
    epochs: Row = noisy | {"plan": by.projected_noisy_sgd_epochs(by.PAPER_NOISE_SCALE)}
    descent: Row = {"plan": by.delete_to_descent, "longest_step": True}
    yield f"projected noisy SGD, b = {batch}", 1, theirs(batch_size=batch, **epochs)
    yield "projected noisy SGD, b = n", 1, theirs(batch_size=0, **epochs)
    yield "Delete-to-Descent", 1, theirs(batch_size=0, **descent)
    for count in (1, *_GROUPS):
        langevin = theirs(batch_size=0, plan=by.langevin, step_noise_std=by.papers_noise)
        yield f"Langevin unlearning, {count} together", count, langevin
    small: Row = {"plan": by.noisy_steps(small_noise), "step_noise_std": small_noise}
    released: Row = {"plan": by.tracked(by.RELEASE_NOISE)}
    for relation in (Neighbours.REPLACEMENT, Neighbours.ZERO_OUT):
        ours = partial(by.Method, source="ours", neighbours=relation, **last)
        yield f"tracked release, b = {batch}", 1, ours(batch_size=batch, **released)
        if batch > 32:
            yield "tracked release, b = 32", 1, ours(batch_size=32, **released)
        yield "projected noisy SGD, σ = 0.007", 1, ours(batch_size=batch, **small)
    for name, steps in {"1 epoch": cycle, "20 steps": 20}.items():
        exact = by.Method("exact", batch, by.retrained(steps), **last)
        yield f"retraining, {name}", 1, exact


def small_noise(_: Case, __: by.Target) -> float:
    """Return a step noise well below the paper's."""
    return 0.02


def in_a_row(case: Case, seeds: int) -> Iterator[Row]:
    """Yield Figure 3b: epochs of gradients for all requests, and accuracy after the last."""
    target = by.Target(1.0, case.delta)
    how: Row = {"epochs": -(-STEPS * BATCH // case.records), "full_batch_steps": FULL_STEPS}
    trainings = [by.Trainings(case, seed=seed, **how) for seed in range(seeds)]
    for name, together, known in methods(case):
        method = replace(known, plan=_once(known.plan)) if known.source == "published" else known
        many: Row = {"requests": REQUESTS // together, "records": together}
        outcomes = [
            by.answer(case, method, target, training.start(method, target), **many, seed=seed)
            for seed, training in enumerate(trainings)
        ]
        share = (method.batch_size or case.records) / case.records
        spent = share * fmean(sum(outcome.steps) for outcome in outcomes)
        scores = [outcome.accuracies[-1] for outcome in outcomes]
        accuracy, error = harness.mean_and_error(scores)
        row: Row = {"method": name, "source": method.source, "records_together": together}
        row["neighbours"] = "any_start" if method.source == "exact" else str(method.neighbours)
        yield row | {"accuracy": accuracy, "error": error, "epochs": spent}


def _once(plan: by.Planner) -> by.Planner:
    """Return a planner that plans once where only the earlier steps and the number count."""
    plans: dict[tuple[tuple[int, ...], int], Plan] = {}

    def planned(case: Case, history: History, earlier: tuple[int, ...], target: by.Target) -> Plan:
        key = earlier, history.forgotten()
        plans[key] = plans.get(key) or plan(case, history, earlier, target)
        return plans[key]

    return planned


def by_batch_and_noise(case: Case, seeds: int) -> Iterator[Row]:
    """Yield Figures 3c and 3d."""
    constants = case.constants
    problem = Problem(case.records, constants, SMALL_EPSILON, case.delta, REQUESTS)
    for batch in (each for each in BATCHES if each <= case.records):
        size = batch or case.records
        for scale in NOISE_SCALES:
            noise = noise_std_of(learning_rate=constants["learning_rate"], noise_scale=scale)
            how: Row = {"noises": (noise, 0.0), "steps": case.records // size}
            scores = [accuracy(case, batch, **how, seed=seed) for seed in range(seeds)]
            mean, error = harness.mean_and_error(scores)
            of: Row = {"batch_size": size, "noise_scale": scale}
            theirs = sum(authors_epochs(problem, **of))
            ours = sum(our_steps(problem, **of, neighbours=Neighbours.REPLACEMENT))
            yield of | {
                "epochs_published": theirs,
                "epochs_ours": ours * size / case.records,
                "accuracy": mean,
                "error": error,
            }


PARTS: Final[dict[str, Callable[[Case, int], Iterator[Row]]]] = {
    "in_a_row": in_a_row,
    "one_request": one_request,
    "by_batch_and_noise": by_batch_and_noise,
}


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
        row = {"case": case.name, "records": case.records, "weight_decay": case.weight_decay}
        found = known.setdefault(case.name, row | dict.fromkeys(PARTS, ()))
        for part in given.part:
            found[part] = list(PARTS[part](case, given.seeds))
            found.setdefault("repeats", {})[part] = given.seeds
            yield document | {"requests": REQUESTS, "cases": list(known.values())}


def figure(document: dict[str, Any], path: Path) -> Path:
    """Draw Figures 3a, 3b, 3c and 3d, a row for each data set."""
    cases = document["cases"]
    with harness.picture(path, (24, 5.5 * len(cases)), len(cases), 4) as (_, axes):
        for (one, row, noisy, cost), case in zip(axes, cases, strict=True):
            names = list(dict.fromkeys(each["method"] for each in case["one_request"]))
            for name, style in zip(names, _STYLES, strict=False):
                some = [each for each in case["one_request"] if each["method"] == name]
                harness.plot(one, some, "epsilon", "accuracy", style, error="error", label=name)
            for number, each in enumerate(case["in_a_row"]):
                spent = {"epochs": max(_LEAST, each["epochs"])}
                face = "white" if each["neighbours"] == "replacement" else None
                how: Row = {"color": f"C{number % 10}", "markerfacecolor": face, "error": "error"}
                how["label"] = f"{each['method']}, {each['neighbours']} ({each['source']})"
                style = _MARKERS[each["source"]]
                harness.plot(row, [each | spent], "epochs", "accuracy", style, **how)
            sizes = dict.fromkeys(each["batch_size"] for each in case["by_batch_and_noise"])
            for number, size in enumerate(sizes):
                some = [each for each in case["by_batch_and_noise"] if each["batch_size"] == size]
                how = {"color": f"C{number}", "label": f"b = {size}"}
                harness.plot(noisy, some, "noise_scale", "accuracy", "o-", error="error", **how)
                for key, style in (("epochs_published", "o-"), ("epochs_ours", "s--")):
                    how["label"] = f"b = {size}, {key.removeprefix('epochs_')}"
                    harness.plot(cost, some, "noise_scale", key, style, **how)
            one.set(xscale="log", xlabel="ε", ylabel="test accuracy", title=f"(a) {case['case']}")
            row.set(xscale="log", xlabel="epochs, 100 records", ylabel="test accuracy")
            row.set_title("(b) ε = 1")
            noisy.set(xscale="log", xlabel="σ", ylabel="test accuracy", title="(c) ε = 0.01")
            cost.set(xscale="log", yscale="log", xlabel="σ", ylabel="epochs", title="(d) ε = 0.01")
            for axis in (one, row, noisy, cost):
                axis.legend(fontsize=8)
    return path


if __name__ == "__main__":
    options = {
        "--case": {"nargs": "+", "default": ["mnist", "cifar10"], "help": "or digits"},
        "--part": {"nargs": "+", "choices": PARTS, "default": [*PARTS]},
        "--cache": {"type": Path, "default": default_cache(), "help": "of the features"},
        "--seeds": {"type": int, "default": 5},
    }
    harness.main("chien_figures", __doc__, run, options=options, figure=figure)

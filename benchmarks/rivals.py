"""What users would otherwise do, run here: ``python -m benchmarks.rivals``.

A head: MNIST 3 against 8 as Chien et al. 2024 have it; records leave one at a time. scikit-learn
trains anew on what is left. Certified removal is Guo et al. 2020: an objective perturbed by
N(0, sigma^2) in each weight, one Newton step a record, and their Corollary 1's bound on the
gradient that is left, with 1/4 for the slope of the loss's curvature; past sigma epsilon / c,
c = sqrt(2 log(1.5/delta)), the model is trained anew. R2D (Mu & Klabjan 2024) goes back to an
earlier step of full-batch descent and goes on without the record. Two runs drift apart by
2 eta G/n a step, and distances grow by 1 + eta L a step, for any loss with an L-Lipschitz gradient
of norm at most G: noise of sqrt(2 log(1.25/delta))/epsilon times that hides it.

A network of one hidden layer of 128 on some of MNIST: SISA with the settings of its authors' own
code (five shards of one slice, votes, plain SGD at 0.001 in batches of 16 for 20 epochs), DP-SGD by
our own step and by Opacus (``benchmarks.private_training``), and retraining. Seconds are a
processor's, of one request. The picture has the costs of all methods that other results have, too.
"""

import json
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier

from app.domain.recipes import TrainingRecipe
from benchmarks import ensembles_cases, harness
from benchmarks.convex import Case, two_digits
from benchmarks.data import load, outputs_of
from benchmarks.harness import seconds_of
from benchmarks.private_training import EPSILON, by_opacus, has_opacus, plan_of, privately
from benchmarks.public_features import RidgeSums
from workers.training.exact import ridge
from workers.training.examples import Examples
from workers.training.networks.network import Network

REQUESTS: Final = 100
SEEDS: Final = 5
CURVATURE_SLOPE: Final = 0.25  # Guo et al.'s constant for the logistic loss
NOISE: Final = 1.0
SHARDS: Final = 5
SISA: Final = TrainingRecipe(  # cleverhans-lab/machine-unlearning, purchase-sharding/train.sh
    learning_rate=0.001,
    momentum=0.0,
    weight_decay=0.0,
    batch_size=16,
    epochs=20,
    schedule="constant",
    held_out_fraction=0.0,
)
REWOUND: Final = 0.5  # of the training that R2D keeps
_EXACT: Final = "exact, each a new training"
_LEAST_RANGE: Final = 10  # points
_LEAST_COST: Final = 1e-4  # where a logarithmic axis puts what costs nothing

Numbers = NDArray[np.float64]
Point = tuple[str, float, float]  # method, gradients of all records, accuracy


class CertifiedRemoval:
    """A logistic model by Guo et al. 2020 and what is left of its budget."""

    def __init__(self, case: Case, *, noise: float, seed: int) -> None:
        self._inputs, self._signs = _numbers(case)
        self._decay = case.weight_decay
        self._noise, self._random = noise, np.random.default_rng(seed)
        self._norm = float(np.linalg.norm(self._inputs, 2))
        self.budget = noise * EPSILON / math.sqrt(2 * math.log(1.5 / case.delta))
        self.trainings = 0
        self._train()

    def forget(self) -> None:
        """Forget the first record."""
        leaving = self._inputs[:1], self._signs[:1]
        change = self._gradient(*leaving) + self._decay * self.weights
        self._inputs, self._signs = self._inputs[1:], self._signs[1:]
        step = np.linalg.solve(self._hessian(), change)
        moved = float(np.linalg.norm(self._inputs @ step))
        self.left += CURVATURE_SLOPE * self._norm * float(np.linalg.norm(step)) * moved
        self.weights += step
        if self.left > self.budget:
            self._train()

    def _train(self) -> None:
        """Minimise the perturbed objective by Newton's method."""
        perturbation = self._noise * self._random.standard_normal(self._inputs.shape[1])
        self.weights = np.zeros(self._inputs.shape[1])
        self.left = math.inf
        while self.left > 1e-6:
            gradient = self._gradient(self._inputs, self._signs) + perturbation
            gradient += self._decay * len(self._signs) * self.weights
            self.left = float(np.linalg.norm(gradient))
            self.weights -= np.linalg.solve(self._hessian(), gradient)
        self.trainings += 1

    def _gradient(self, inputs: Numbers, signs: Numbers) -> Numbers:
        return np.asarray(-(signs * expit(-signs * (inputs @ self.weights))) @ inputs)

    def _hessian(self) -> Numbers:
        chance = expit(self._inputs @ self.weights)
        scaled = self._inputs * np.sqrt(chance * (1 - chance))[:, None]
        ridged = self._decay * len(self._signs) * np.eye(self._inputs.shape[1])
        return np.asarray(scaled.T @ scaled + ridged)


def refitted(case: Case, seed: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield each model's name, accuracy, seconds and passes, trained without the first records."""
    inputs, signs = _numbers(case)
    decay = case.weight_decay * (len(signs) - REQUESTS)
    how: dict[str, Any] = {"alpha": case.weight_decay, "max_iter": 5, "tol": None}
    for model in (
        LogisticRegression(C=1 / decay, tol=1e-6, fit_intercept=False),
        SGDClassifier("log_loss", **how, random_state=seed, fit_intercept=False),
        RidgeClassifier(decay, solver="cholesky", fit_intercept=False),
    ):
        fit = partial(model.fit, inputs[REQUESTS:], signs[REQUESTS:])
        spent, _ = seconds_of(fit, time.process_time)
        # Cholesky's is one product of the features with themselves.
        passes = np.size(model.coef_) / 2 if model.n_iter_ is None else np.max(model.n_iter_)
        yield type(model).__name__, _accuracy(case, np.ravel(model.coef_)), spent, float(passes)


def removed(case: Case, noise: float, seed: int) -> tuple[float, float, int]:
    """Return accuracy, the seconds of one request, and how often it was trained anew."""
    model = CertifiedRemoval(case, noise=noise, seed=seed)
    spent, _ = seconds_of(lambda: [model.forget() for _ in range(REQUESTS)], time.process_time)
    return _accuracy(case, model.weights), spent / REQUESTS, model.trainings - 1


def subtracted(case: Case) -> tuple[float, float]:
    """Return accuracy and the seconds of one request of our ridge head."""
    inputs, target = case.train.inputs.numpy(), case.train.target.numpy()
    sums = RidgeSums(inputs, target, 1.0, classes=case.classes)
    kept = sums.over(slice(None))

    def forget(number: int) -> ridge.Solution:
        kept.subtract(sums.over(slice(number, number + 1)))
        return ridge.solve(kept, regularisation=case.weight_decay)

    forget_all = partial(list, map(forget, range(REQUESTS)))
    spent, solutions = seconds_of(forget_all, time.process_time)
    return sums.accuracy(solutions[-1], case.test), spent / REQUESTS


def rewound(case: Case, steps: int, rate: float, seed: int) -> tuple[float, float, float]:
    """Return R2D's accuracy, seconds and passes, with the constants of a head without decay."""
    inputs, signs = _numbers(case)

    def descended(weights: Numbers, count: int, first: int) -> Numbers:
        for _ in range(count):
            slope = expit(-signs[first:] * (inputs[first:] @ weights))
            weights = weights + rate * (signs[first:] * slope) @ inputs[first:] / len(slope)
        return weights

    kept = int(REWOUND * steps)
    start = descended(np.zeros(inputs.shape[1]), kept, 0)
    again = partial(descended, start, steps - kept, 1)  # one record is gone
    spent, weights = seconds_of(again, time.process_time)
    growth = 1 + rate * CURVATURE_SLOPE
    apart = 2 * rate / case.records * growth ** (steps - kept) * (growth**kept - 1) / (growth - 1)
    noise = apart * math.sqrt(2 * math.log(1.25 / case.delta)) / EPSILON
    weights += noise * np.random.default_rng(seed).standard_normal(len(weights))
    return _accuracy(case, weights), spent, float(steps - kept)


def head_rows(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each method for heads."""
    for runs in zip(*(refitted(case, seed) for seed in range(SEEDS)), strict=True):
        name, _, _, passes = runs[0]
        yield _row(f"scikit-learn {name}", [run[1:3] for run in runs], passes, _EXACT)
    removals = [removed(case, NOISE, seed) for seed in range(SEEDS)]
    proof = f"({EPSILON:g}, 1/n), trained anew {fmean(run[2] for run in removals):g} times"
    half = case.train.inputs.shape[1] / 2
    yield _row(f"certified removal, σ = {NOISE:g}", [run[:2] for run in removals], half, proof)
    for steps, rate in ((10, 4.0), (100, 0.1)):
        runs = [rewound(case, steps, rate, seed) for seed in range(SEEDS)]
        name = f"R2D, half of {steps} steps of {rate:g}"
        yield _row(name, [run[:2] for run in runs], runs[0][2], f"({EPSILON:g}, 1/n), one request")
    yield _row("ridge head, ours", [subtracted(case)], 0.0, "exact, with a certificate")


def network_rows(case: ensembles_cases.Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each method for a network; its first records are forgotten."""
    rest = np.arange(REQUESTS, len(case.train))
    retrained = [_voted([_trained(case, rest, case.recipe)], case.test) for _ in range(SEEDS)]
    yield _row("retraining", retrained, case.recipe.epochs, _EXACT)
    sharded, ours = [], []
    for seed in range(SEEDS):
        shard = np.random.default_rng(seed).integers(SHARDS, size=len(rest))
        parts = [rest[shard == own] for own in range(SHARDS)]
        for votes, recipe in ((sharded, SISA), (ours, case.recipe)):
            votes.append(_voted([_trained(case, part, recipe) for part in parts], case.test))
    proved = "exact, a shard trained anew"
    published = f"SISA as published, {SHARDS} shards"
    yield _row(published, sharded, SISA.epochs / SHARDS, proved)
    yield _row("the same shards, our recipe", ours, case.recipe.epochs / SHARDS, proved)
    yield from private_rows(case)


def private_rows(case: ensembles_cases.Case) -> Iterator[dict[str, Any]]:
    """Yield DP-SGD by our step and by Opacus; a request costs nothing."""
    for group in (1, 10):
        plan = plan_of(case, group)
        for name, trained in {"ours": privately, "Opacus": by_opacus}.items():
            if name == "ours" or has_opacus():
                runs = [_voted([trained(case, plan)], case.test) for _ in range(SEEDS)]
                step = 1000 * fmean(seconds for _, seconds in runs)
                proved = f"({EPSILON:g}, 1e-5) for a group; {step:.1f} ms a step of training"
                scores = [(accuracy, 0.0) for accuracy, _ in runs]
                yield _row(f"DP-SGD by {name}, groups of {group}", scores, 0.0, proved)
            else:
                print("Opacus is not installed, so its rows are missing: see private_training")


def _trained(
    case: ensembles_cases.Case, chosen: NDArray[np.int64], recipe: TrainingRecipe
) -> tuple[Network, float]:
    train = partial(replace(case, recipe=recipe).trained, chosen)
    return seconds_of(train, time.process_time)[::-1]


def _voted(trained: list[tuple[Network, float]], test: Examples) -> tuple[float, float]:
    """Return the accuracy of most votes, and the seconds of one member's training."""
    guesses = [outputs_of(network.module.eval(), test).argmax(1) for network, _ in trained]
    right = torch.stack(guesses).mode(0).values == test.target
    return float(right.float().mean()), fmean(seconds for _, seconds in trained)


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield everything that is measured."""
    torch.set_num_threads(1)
    case = two_digits(load("digits" if given.quick else "mnist"))
    make = ensembles_cases.digits if given.quick else ensembles_cases.mnist
    network = make(public=False)
    chosen = np.random.default_rng(0).permutation(len(network.train))[: given.records]
    network = replace(network, train=network.train.select(chosen))
    yield {
        "data": case.name,
        "records": case.records,
        "features": case.train.inputs.shape[1],
        "weight_decay": case.weight_decay,
        "epsilon": EPSILON,
        "delta": case.delta,
        "requests": REQUESTS,
        "rows": list(head_rows(case)),
        "network": f"{len(chosen):,} records of {network.note}",
        "network_rows": list(network_rows(network)),
    }


def table(document: dict[str, Any]) -> str:
    """Return all rows, in Markdown."""
    rows = (
        (
            f"{model}{row['method']}",
            f"{row['accuracy']:.1%}" + (f" ± {row['error']:.1%}" if row["error"] else ""),
            f"{row['seconds']:.3f}",
            f"{row['passes']:g}",
            row["proved"],
        )
        for model, key in (("", "rows"), ("network: ", "network_rows"))
        for row in document[key]
    )
    return harness.table("method | accuracy | seconds | passes | proved", rows)


def _row(
    method: str, runs: list[tuple[float, float]], passes: float, proved: str
) -> dict[str, Any]:
    accuracy, error = harness.mean_and_error([run[0] for run in runs])
    seconds = fmean(run[1] for run in runs)
    row = {"method": method, "accuracy": accuracy, "error": error, "seconds": seconds}
    return row | {"passes": passes, "proved": proved}


def _numbers(case: Case) -> tuple[Numbers, Numbers]:
    inputs = case.train.inputs.numpy().astype(np.float64)
    return inputs, 2.0 * case.train.target.numpy() - 1


def _accuracy(case: Case, weights: Numbers) -> float:
    guessed = case.test.inputs.numpy() @ weights > 0
    return float((guessed == case.test.target.numpy().astype(bool)).mean())


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw accuracy against the cost of a request, for heads and networks."""
    panels = {
        "a head: MNIST, 3 against 8": [*_of_rows(document["rows"]), *_in_a_row()],
        "a network: MNIST": [*_of_ensembles("scratch")],
        "a network: 2,000 pictures of MNIST": [*_of_rows(document["network_rows"])],
        "a CNN from scratch: CIFAR-10": [*_of_cnn()],
        "a fine-tuned backbone: CIFAR-10": [*_of_ensembles("pictures")],
        "adapters on a text model: sentences": [*_of_ensembles("texts")],
    }
    with harness.picture(path, (21, 9), rows=2, columns=3) as (_, grid):
        for axis, (title, points) in zip(grid.flat, panels.items(), strict=True):
            for number, (name, cost, accuracy) in enumerate(points):
                marker = "osD^vP*X"[number % 8]
                label = name if cost else f"{name} (no gradient)"
                axis.plot(max(cost, _LEAST_COST), 100 * accuracy, marker, label=label)
            axis.set(xscale="log", title=title, ylabel="test accuracy, %")
            axis.set(xlabel="cost of one request, gradients of all records")
            low, high = axis.get_ylim()
            axis.margins(y=max(0.05, (_LEAST_RANGE / (high - low) - 1) / 2))
            axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def _result(name: str) -> dict[str, Any]:
    return dict(json.loads((harness.RESULTS / f"{name}.json").read_text()))


def _of_rows(rows: list[dict[str, Any]]) -> Iterator[Point]:
    for row in rows:
        yield row["method"], row["passes"], row["accuracy"]


def _in_a_row() -> Iterator[Point]:
    """Yield what was run 100 times in a row, under the relation that each is proved for."""
    done = _result("chien_figures")
    for row in done["cases"][0]["in_a_row"]:
        if row["source"] != "ours" or row["neighbours"] == "zero_out":
            name = f"{row['method']}, published" if row["source"] == "published" else row["method"]
            yield name, row["epochs"] / done["requests"], row["accuracy"]


def _of_cnn() -> Iterator[Point]:
    """Yield what each method reached at the longest budget, from the own start and others."""
    rows = _result("unlearning_vs_retraining")["cifar10, 50,000 pictures"]["rows"]
    longest = max(row["budget_epochs"] for row in rows)
    for row in rows:
        if row["budget_epochs"] == longest:
            end = ", random start" if row["control"] else ""
            name = f"{row['method'].replace('_', ' ')}{end}, scale: {row['start']}"
            yield name, longest, row["mean"]


def _of_ensembles(case: str) -> Iterator[Point]:
    part = _result("ensembles")[case]
    epochs = part["recipe"]["epochs"]
    for row in part["rows"]:
        name = "one network" if row["members"] == 1 else f"ensemble of {row['members']}"
        yield name, epochs * row["each"], row["accuracy"]
    for row in part["rivals"]:
        yield row["method"].replace("_", " "), epochs * row["gradients"], row["accuracy"]
    left_out = {"pictures": "backbone"}.get(case, case)
    for row in _result("leaving_out").get(left_out, {"rows": ()})["rows"]:
        if row["members"] == 8 and row["way"] == "left out, refilled at 1/2":
            yield "ensemble of 8, left out", epochs * row["of_singly"] / 8, row["score"]


if __name__ == "__main__":
    options = {
        "--quick": {"action": "store_true", "help": "small digits, in seconds"},
        "--records": {"type": int, "default": 2000, "help": "that the network is trained on"},
    }
    harness.main("rivals", __doc__, run, options=options, table=table, figure=figure)

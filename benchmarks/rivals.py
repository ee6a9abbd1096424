"""What users would otherwise do with a head, run here: ``python -m benchmarks.rivals``.

MNIST 3 against 8 in the setting of ``benchmarks.sequential_convex``; records leave one at a time.
scikit-learn trains anew on what is left. Certified removal is Guo et al. 2020: an objective that is
perturbed by N(0, sigma^2) in each weight, one Newton step a record, and the bound of their
Corollary 1 on the gradient that is left, with 1/4 for the slope of the loss's curvature. Bounds add
up; at sigma epsilon / c, c = sqrt(2 log(1.5/delta)), their Theorem 3 no longer gives
(epsilon, delta), and the model is trained anew. Seconds are a processor's, of one request. The
picture has the costs of all methods that other results have, too.
"""

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier

from benchmarks import harness
from benchmarks.convex import Case, two_digits
from benchmarks.data import load
from benchmarks.public_features import RidgeSums
from workers.training.exact import ridge

EPSILON: Final = 1.0
REQUESTS: Final = 100
SEEDS: Final = 5
CURVATURE_SLOPE: Final = 0.25  # Guo et al.'s constant for the logistic loss
NOISES: Final = (1.0,)
_RETRAINED: Final = ("retraining, 20 steps", "retraining, 1 epoch")
_LEAST_COST: Final = 1e-4  # where a logarithmic axis puts what costs nothing

Numbers = NDArray[np.float64]
Fit = Callable[[Numbers, Numbers, int], tuple[Numbers, float]]


def logistic(decay: float) -> Fit:
    """Return a fit by L-BFGS, and its passes over the records."""

    def fit(inputs: Numbers, signs: Numbers, _: int) -> tuple[Numbers, float]:
        model = LogisticRegression(C=1 / (decay * len(signs)), fit_intercept=False, tol=1e-6)
        model.fit(inputs, signs)
        return np.ravel(model.coef_), float(model.n_iter_[0])

    return fit


def stochastic(decay: float) -> Fit:
    """Return a fit by SGD with five passes."""

    def fit(inputs: Numbers, signs: Numbers, seed: int) -> tuple[Numbers, float]:
        how: dict[str, Any] = {"alpha": decay, "max_iter": 5, "tol": None, "random_state": seed}
        model = SGDClassifier(loss="log_loss", fit_intercept=False, **how)
        model.fit(inputs, signs)
        return np.ravel(model.coef_), 5.0

    return fit


def least_squares(decay: float) -> Fit:
    """Return a ridge fit, which takes one product of the features with themselves."""

    def fit(inputs: Numbers, signs: Numbers, _: int) -> tuple[Numbers, float]:
        model = RidgeClassifier(alpha=decay * len(signs), fit_intercept=False, solver="cholesky")
        model.fit(inputs, signs)
        return np.ravel(model.coef_), inputs.shape[1] / 2

    return fit


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


def refitted(case: Case, fit: Fit, seed: int) -> tuple[float, float, float]:
    """Return accuracy, seconds and passes of a training without the first records."""
    inputs, signs = _numbers(case)
    started = time.process_time()
    weights, passes = fit(inputs[REQUESTS:], signs[REQUESTS:], seed)
    spent = time.process_time() - started
    return _accuracy(case, weights), spent, passes


def removed(case: Case, noise: float, seed: int) -> tuple[float, float, int]:
    """Return accuracy, the seconds of one request, and how often it was trained anew."""
    model = CertifiedRemoval(case, noise=noise, seed=seed)
    started = time.process_time()
    for _ in range(REQUESTS):
        model.forget()
    spent = (time.process_time() - started) / REQUESTS
    return _accuracy(case, model.weights), spent, model.trainings - 1


def subtracted(case: Case) -> tuple[float, float]:
    """Return accuracy and the seconds of one request of our ridge head."""
    inputs, target = case.train.inputs.numpy(), case.train.target.numpy()
    sums = RidgeSums(inputs, target, 1.0, classes=case.classes)
    kept = sums.over(slice(None))
    started = time.process_time()
    for number in range(REQUESTS):
        kept.subtract(sums.over(slice(number, number + 1)))
        solution = ridge.solve(kept, regularisation=case.weight_decay)
    spent = (time.process_time() - started) / REQUESTS
    return sums.accuracy(solution, case.test), spent


def rows_of(case: Case) -> Iterator[dict[str, Any]]:
    """Yield a row for each method."""
    exact = "exact, if every request is a new training"
    for name, of, seeds in (
        ("scikit-learn LogisticRegression", logistic, 1),
        ("scikit-learn SGDClassifier", stochastic, SEEDS),
        ("scikit-learn RidgeClassifier", least_squares, 1),
    ):
        runs = [refitted(case, of(case.weight_decay), seed) for seed in range(seeds)]
        yield _row(name, [run[:2] for run in runs], runs[0][2], exact)
    for noise in NOISES:
        removals = [removed(case, noise, seed) for seed in range(SEEDS)]
        proof = f"({EPSILON:g}, 1/n), trained anew {fmean(run[2] for run in removals):g} times"
        name = f"certified removal, σ = {noise:g}"
        size = case.train.inputs.shape[1] / 2
        yield _row(name, [run[:2] for run in removals], size, proof)
    yield _row("ridge head, ours", [subtracted(case)], 0.0, "exact, with a certificate")


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield everything that is measured."""
    case = two_digits(load("digits" if given.quick else "mnist"))
    yield {
        "data": case.name,
        "records": case.records,
        "features": case.train.inputs.shape[1],
        "weight_decay": case.weight_decay,
        "epsilon": EPSILON,
        "delta": case.delta,
        "requests": REQUESTS,
        "rows": list(rows_of(case)),
    }


def table(document: dict[str, Any]) -> str:
    """Return all rows, in Markdown."""
    rows = (
        (
            row["method"],
            f"{row['accuracy']:.1%}" + (f" ± {row['error']:.1%}" if row["error"] else ""),
            f"{row['seconds']:.3f}",
            f"{row['passes']:g}",
            row["proved"],
        )
        for row in document["rows"]
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
    """Draw accuracy against the cost of a request, for a head and for three networks."""
    panels = {"a head: MNIST, 3 against 8": [*_heads(document)], **_networks()}
    with harness.picture(path, (16, 9), rows=2, columns=2) as (_, grid):
        for axis, (title, points) in zip(grid.flat, panels.items(), strict=True):
            for number, (name, cost, accuracy) in enumerate(points):
                marker = "osD^vP*X"[number % 8]
                label = name if cost else f"{name} (no gradient)"
                axis.plot(max(cost, _LEAST_COST), 100 * accuracy, marker, label=label)
            axis.set(xscale="log", title=title, ylabel="test accuracy, %")
            axis.set(xlabel="cost of one request, gradients of all records")
            axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def _result(name: str) -> dict[str, Any]:
    return dict(json.loads((harness.RESULTS / f"{name}.json").read_text()))


def _heads(document: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    for row in document["rows"]:
        yield row["method"], row["passes"], row["accuracy"]
    done = _result("sequential_convex")
    for row in done["rows"]:
        known = row["method"].startswith(("tracked release, b = 32", "projected", *_RETRAINED))
        published = row["source"] == "published" or row["neighbours"] != "replacement"
        if row["epsilon"] == EPSILON and known and published:
            name = f"{row['method']}, published" if row["source"] == "published" else row["method"]
            cost = row["gradients"] / done["requests"] / done["records"]
            yield name, cost, row["final_accuracy"]


def _networks() -> dict[str, list[tuple[str, float, float]]]:
    titles = {
        "scratch": "a network from scratch: MNIST",
        "pictures": "a fine-tuned backbone: EfficientNet-Lite0 on CIFAR-10",
        "texts": "adapters on a small transformer: sentences",
    }
    panels = {}
    for case, title in titles.items():
        part = _result("ensembles")[case]
        epochs = part["recipe"]["epochs"]
        points = [(_members(row["members"]), row["each"], row) for row in part["rows"]]
        points += [
            (row["method"].replace("_", " "), row["gradients"], row) for row in part["rivals"]
        ]
        panels[title] = [(name, epochs * cost, row["accuracy"]) for name, cost, row in points]
    return panels


def _members(count: int) -> str:
    return "retraining" if count == 1 else f"ensemble of {count}"


if __name__ == "__main__":
    quick = {"--quick": {"action": "store_true", "help": "small digits, in seconds"}}
    harness.main("rivals", __doc__, run, options=quick, table=table, figure=figure)

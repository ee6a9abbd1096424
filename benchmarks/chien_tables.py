"""Chien et al. 2024: 100 sequential requests (Figures 3c and 3d) and Table 3, theirs and ours.

What reproduces every published count, found by trying the possible readings of their text:

* noise variance: their bound divides by 2 eta sigma^2 although the algorithm's noise gives 4;
* decay: the loose c^{2K n/b} for the first request, c^{2K'} (1 - c^2)/(1 - c^{2K'}), K' = K n/b,
  for all others;
* conversion: Mironov's, at the best order; whole epochs; Z(1) = Z, Z(s+1) = c^{K n/b} Z(s) + Z.

Table 3 is their Algorithm 5: Theorem 3.2 with R = 100 and T = 20 (b = 128) or 1000 (full batch),
cut, not rounded, after four decimals.

To compare like with like, ours is counted from the drift alone as well, as if training had added no
noise (``our_steps``); what certificates state counts that noise too.
"""

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.accounting import gaussian
from app.accounting.chains.noisy_chain import constant_mu
from app.accounting.histories.history import History, Recipe
from app.accounting.histories.history_account import worst_case_drift
from app.accounting.published import chien
from app.accounting.published.chien import Setting
from app.accounting.terms import Neighbours
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from benchmarks.calibration import fewest, noise_std_of

RADIUS = 100.0
TRAINING_EPOCHS = {128: 20, 11264: 1000}


@dataclass(frozen=True)
class Problem:
    """The published setting, with its expressions evaluated."""

    records: int
    constants: dict[str, float]
    epsilon: float
    delta: float
    requests: int

    @classmethod
    def of(cls, setting: dict[str, Any]) -> "Problem":
        """Return the problem of the JSON file's setting."""
        records = int(setting["n"])
        weight_decay, smoothness = 1e-6 * records, 0.25
        return cls(
            records=records,
            constants={
                "weight_decay": weight_decay,
                "smoothness": smoothness,
                "learning_rate": 1 / (smoothness + weight_decay),
                "lipschitz": float(setting["lipschitz"]),
            },
            epsilon=float(setting["epsilon"]),
            delta=1 / records,
            requests=int(setting["requests"]),
        )

    def theirs(self, batch_size: int, noise_scale: float) -> dict[str, Any]:
        """Return the papers' setting."""
        return {
            **self.constants,
            "batch_size": batch_size,
            "records": self.records,
            "noise_scale": noise_scale,
            "radius": RADIUS,
        }

    def recipe(self, *, batch_size: int, neighbours: Neighbours) -> Recipe:
        """Return our recipe of the same training, without projection."""
        return Recipe(
            **self.constants,
            batch_size=batch_size,
            batches=self.records // batch_size,
            neighbours=neighbours,
        )


def authors_epochs(problem: Problem, *, batch_size: int, noise_scale: float) -> list[int]:
    """Return the epochs of each request as the authors' code counts them."""
    setting = Setting(**problem.theirs(batch_size, noise_scale))
    # Mironov: f + 2 sqrt(f log(1/delta)) <= epsilon, solved for the divergence f at order 1.
    log_term = -math.log(problem.delta)
    allowed = (math.sqrt(log_term + problem.epsilon) - math.sqrt(log_term)) ** 2
    fresh = setting.epochs_lost() * setting.shift
    distance, epochs = fresh, []
    for request in range(problem.requests):
        start = setting.divergence_factor(distance)
        count = 1
        while start * setting.amplification(count * setting.batches, sharp=request > 0) > allowed:
            count += 1
        epochs.append(count)
        distance = setting.decay(count * setting.batches) * distance + fresh
    return epochs


def our_steps(
    problem: Problem, *, batch_size: int, noise_scale: float, neighbours: Neighbours
) -> list[int]:
    """Return the iterations of each request, from the drift; runs may stop mid-epoch."""
    recipe = problem.recipe(batch_size=batch_size, neighbours=neighbours)
    fresh = worst_case_drift(recipe=recipe)
    rate = problem.constants["learning_rate"]
    noise_std = noise_std_of(learning_rate=rate, noise_scale=noise_scale)
    allowed = gaussian.mu_of(epsilon=problem.epsilon, delta=problem.delta)
    drift, steps = fresh, list[int]()
    for _ in range(problem.requests):
        mu = partial(_mu, recipe, drift, noise_std)
        steps.append(fewest(lambda count, mu=mu: count > 0 and mu(count) <= allowed))
        drift = recipe.contraction ** steps[-1] * drift * (1 + 1e-12) + fresh
    return steps


def _mu(recipe: Recipe, drift: float, noise_std: float, steps: int) -> float:
    return constant_mu(
        start_distance=drift,
        contraction=recipe.contraction,
        shift=0.0,
        noise_std=noise_std,
        steps=steps,
    )


def request_rows(published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each published row beside what both accountants give."""
    problem = Problem.of(published["setting"])
    rows = []
    for row in published["rows"]:
        batch_size, noise_scale = int(row["batch_size"]), float(row["sigma"])
        theirs = authors_epochs(problem, batch_size=batch_size, noise_scale=noise_scale)
        batches = problem.records // batch_size
        how = {"batch_size": batch_size, "noise_scale": noise_scale}
        ours = {
            neighbours.value: our_steps(problem, **how, neighbours=neighbours)
            for neighbours in (Neighbours.REPLACEMENT, Neighbours.ZERO_OUT)
        }
        rows.append(
            {
                **row,
                "reproduced_total_epochs": sum(theirs),
                "reproduced_first_request_epochs": theirs[0],
                "reproduced": sum(theirs) == row["total_epochs"]
                and theirs[0] == row["first_request_epochs"],
                **{f"our_epochs_{name}": sum(steps) / batches for name, steps in ours.items()},
                **{f"our_first_epochs_{name}": steps[0] / batches for name, steps in ours.items()},
            }
        )
    return rows


def one_epoch_rows(published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return Table 3: the smallest sigma for one epoch of unlearning."""
    problem = Problem.of(published["setting"])
    table = published["table3_sigma_for_one_epoch_mnist"]
    scale = math.sqrt(2 * problem.constants["learning_rate"])
    rows = []
    for name, batch_size in (("b128", 128), ("full_batch", problem.records)):
        recipe = problem.recipe(batch_size=batch_size, neighbours=Neighbours.REPLACEMENT)
        # At unit noise; mu is as 1 / noise.
        fresh = _mu(recipe, worst_case_drift(recipe=recipe), 1.0, recipe.batches)
        trained = _mu_with_training_noise(recipe)
        for epsilon, sigma in zip(table["epsilon"], table[name], strict=True):
            theirs = _theirs_for_one_epoch(problem, batch_size, float(epsilon))
            allowed = gaussian.mu_of(epsilon=float(epsilon), delta=problem.delta)
            rows.append(
                {
                    "batch_size": batch_size,
                    "epsilon": epsilon,
                    "sigma": sigma,
                    "sigma_with_their_bound": theirs,
                    # The paper cuts after four decimals.
                    "reproduced": math.floor(theirs * 1e4) == round(sigma * 1e4),
                    "our_sigma": fresh / allowed / scale,
                    "our_sigma_with_training_noise": trained / allowed / scale,
                }
            )
    return rows


def tables(folder: Path) -> dict[str, Any]:
    """Return all of the paper's tables that concern accounting."""
    published = json.loads((folder / "chien-2024.json").read_text())
    problem = Problem.of(published["setting"])
    return {
        "setting": published["setting"],
        "mu_of_target": gaussian.mu_of(epsilon=problem.epsilon, delta=problem.delta),
        "requests": request_rows(published),
        "one_epoch": one_epoch_rows(published),
    }


def _theirs_for_one_epoch(problem: Problem, batch_size: int, epsilon: float) -> float:
    """Return the smallest sigma with which Theorem 3.2 and Mironov's conversion give epsilon."""
    guarantee = chien.theorem_3_2(
        **problem.theirs(batch_size, 1.0), training_epochs=TRAINING_EPOCHS[batch_size], epochs=1
    )
    orders = [1 + math.exp(point / 400) for point in range(-1600, 4800)]
    divergences = [guarantee.curve(order) for order in orders]
    gains = [-math.log(problem.delta) / (order - 1) for order in orders]
    # The bound is divergence / sigma^2 + gain <= epsilon at some order.
    return math.sqrt(
        min(
            divergence / (epsilon - gain)
            for divergence, gain in zip(divergences, gains, strict=True)
            if gain < epsilon
        )
    )


def _mu_with_training_noise(recipe: Recipe) -> float:
    """Return mu where the noise of training counts, for a record in the last batch."""
    history = (
        History(recipe)
        .after_steps(TRAINING_EPOCHS[recipe.batch_size] * recipe.batches, noise_std=1.0)
        .after_request({recipe.batches - 1: 1})
        .after_steps(recipe.batches, noise_std=1.0)
    )
    return ProjectedNoisySgd(history=history).account().mu

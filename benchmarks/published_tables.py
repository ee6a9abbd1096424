"""The papers' tables by their authors' bounds, and ours beside: ``benchmarks.published_tables``.

Reads benchmarks/published/*.json, prints every row, and exits with 1 where one cannot be
reproduced.

Koloskova et al. 2025, Tables 5 to 10 and 12 to 15. Chien et al. 2024: 100 sequential requests
(Figures 3c and 3d) and Table 3. What reproduces every count of theirs, found by trying the possible
readings:

* noise variance: their bound divides by 2 eta sigma^2 although the algorithm's noise gives 4;
* decay: the loose c^{2K n/b} for the first request, c^{2K'} (1 - c^2)/(1 - c^{2K'}), K' = K n/b,
  for all others;
* conversion: Mironov's, at the best order; whole epochs; Z(1) = Z, Z(s+1) = c^{K n/b} Z(s) + Z.

Table 3 is their Algorithm 5: Theorem 3.2 with R = 100 and T = 20 (b = 128) or 1000 (full batch),
cut, not rounded, after four decimals. To compare like with like, ours is counted from the drift
alone as well, as if training had added no noise; what certificates state counts that noise too.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from app.accounting import gaussian, gradient_clipping, model_clipping, output_perturbation
from app.accounting.chains import noisy_chain
from app.accounting.chains.noisy_chain import constant_mu
from app.accounting.histories.history import History, Recipe
from app.accounting.histories.history_account import worst_case_drift
from app.accounting.published import chien
from app.accounting.published import koloskova as bounds
from app.accounting.published.chien import Setting
from app.accounting.search import smallest
from app.accounting.terms import Neighbours
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from benchmarks import harness
from benchmarks.calibration import calibrate, fewest, noise_std_of, steps_needed

PUBLISHED = Path(__file__).parent / "published"
# Published noise has four to six digits; a claim is reproduced if it agrees to this.
TOLERANCE = 2e-4

Row = dict[str, Any]


def distinct(table: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Return each setting of the rows once, with its tables and how many rows have it."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for values in table["rows"]:
        row = dict(zip(table["columns"], values, strict=True))
        setting = {key: row[key] for key in keys}
        entry = found.setdefault(tuple(setting.values()), {"tables": [], "rows": 0, **setting})
        entry["rows"] += 1
        if row["table"] not in entry["tables"]:
            entry["tables"].append(row["table"])
    return list(found.values())


def gradient_clipping_rows(table: Row, delta: float) -> Iterator[Row]:
    """Yield each gradient-clipping setting with the authors' noise, its true epsilon and ours.

    The authors took the Renyi divergence of order alpha, alpha mu^2/2, for alpha epsilon, and so
    mu = sqrt(2 epsilon).
    """
    for row in distinct(table, "epsilon", "lam", "C1", "gamma", "C0", "T", "sigma"):
        target = {"epsilon": float(row["epsilon"]), "delta": delta}
        setting = gradient_clipping_setting(row)
        unit = bounds.theorem_a_9(**setting, noise_std=1.0).curve(1.0)
        reproduced = math.sqrt(unit / row["epsilon"])
        worth = gradient_clipping.account(noise_std=row["sigma"], **setting).alone()
        needed = gradient_clipping.calibrate(**target, **setting)
        noisy = {**setting, "noise_std": row["sigma"]}
        meets = partial(_meets_after, noisy, target)
        yield {
            **row,
            "sigma_with_their_bound": reproduced,
            "reproduced": math.isclose(reproduced, row["sigma"], rel_tol=TOLERANCE),
            "mu_of_published_sigma": worth.mu,
            "true_epsilon": worth.epsilon(delta=delta),
            "true_delta_at_target_epsilon": worth.delta(epsilon=target["epsilon"]),
            "sigma_that_meets_target": needed,
            "factor": needed / row["sigma"],
            # By the coupling if need be; None where it is followed in vain.
            "steps_that_meet_target": fewest(meets) if meets(noisy_chain.MOST_STEPS) else None,
        }


def _meets_after(setting: Row, target: dict[str, float], steps: int) -> bool:
    return steps > 0 and gradient_clipping.account(**setting | {"steps": steps}).meets(**target)


def gradient_clipping_setting(row: dict[str, Any]) -> dict[str, Any]:
    """Return our accountant's names for the paper's symbols."""
    return {
        "initial_clip": float(row["C0"]),
        "gradient_clip": float(row["C1"]),
        "learning_rate": float(row["gamma"]),
        "weight_decay": float(row["lam"]),
        "steps": row["T"],
    }


def model_clipping_rows(table: Row, delta: float) -> Iterator[Row]:
    """Yield each model-clipping setting with the steps of Theorem 4.2 and of the recursion."""
    for row in distinct(table, "epsilon", "C2", "sigma", "T"):
        chain = {"initial_clip": 1.0, "model_clip": float(row["C2"])}
        chain["noise_std"] = float(row["sigma"])
        target = {"epsilon": float(row["epsilon"]), "delta": delta}
        ours = model_clipping.steps_needed(**target, **chain)
        account = partial(model_clipping.account, **chain, steps=row["T"])
        yield {
            **row,
            "steps_of_theorem_4_2": steps_needed(**target, **chain),
            "steps_ours": ours,
            "reproduced": ours == row["T"],
            "true_epsilon": smallest(
                lambda epsilon, account=account: (
                    epsilon > 0 and account(epsilon=epsilon).at_delta <= delta
                ),
                highest=64.0,
                width=1e-6,
            ),
        }


def output_perturbation_rows(table: Row, delta: float) -> Iterator[Row]:
    """Yield each output-perturbation setting with the classical formula and the exact noise."""
    for row in distinct(table, "epsilon", "C0", "sigma"):
        start = {"initial_clip": float(row["C0"])}
        target = {"epsilon": float(row["epsilon"]), "delta": delta}
        classical = calibrate(bounds.classical_output_perturbation, **target, **start)
        exact = output_perturbation.calibrate(**target, **start)
        worth = output_perturbation.account(noise_std=row["sigma"], **start)
        yield {
            **row,
            "sigma_with_their_bound": classical,
            "reproduced": math.isclose(classical, row["sigma"], rel_tol=TOLERANCE),
            "true_epsilon": worth.epsilon(delta=delta),
            "sigma_exact": exact,
            "factor": exact / row["sigma"],
        }


RADIUS = 100.0
TRAINING_EPOCHS = {"b128": 20, "full_batch": 1000}


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
        own = {"batch_size": batch_size, "records": self.records, "noise_scale": noise_scale}
        return {**self.constants, **own, "radius": RADIUS}

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


def request_rows(published: Row) -> Iterator[Row]:
    """Yield each published row beside what both accountants give."""
    problem = Problem.of(published["setting"])
    for row in published["rows"]:
        how: Row = {"batch_size": int(row["batch_size"]), "noise_scale": float(row["sigma"])}
        first, total = "first_request_epochs", "total_epochs"
        theirs, batches = authors_epochs(problem, **how), problem.records // row["batch_size"]
        found = {
            **row,
            f"reproduced_{total}": sum(theirs),
            f"reproduced_{first}": theirs[0],
            "reproduced": (sum(theirs), theirs[0]) == (row[total], row[first]),
        }
        relations = (Neighbours.REPLACEMENT, Neighbours.ZERO_OUT)
        ours = {each.value: our_steps(problem, **how, neighbours=each) for each in relations}
        found |= {f"our_epochs_{name}": sum(steps) / batches for name, steps in ours.items()}
        found |= {f"our_first_epochs_{name}": steps[0] / batches for name, steps in ours.items()}
        yield found


def one_epoch_rows(published: Row) -> Iterator[Row]:
    """Yield Table 3: the smallest sigma for one epoch of unlearning."""
    table = published["table3_sigma_for_one_epoch"]
    for data, name in itertools.product(("mnist", "cifar10"), TRAINING_EPOCHS):
        problem = Problem.of({**published["setting"], "n": table[data]["n"]})
        scale = math.sqrt(2 * problem.constants["learning_rate"])
        batch_size, trained_for = 128 if name == "b128" else problem.records, TRAINING_EPOCHS[name]
        recipe = problem.recipe(batch_size=batch_size, neighbours=Neighbours.REPLACEMENT)
        # At unit noise; mu is as 1 / noise.
        fresh = _mu(recipe, worst_case_drift(recipe=recipe), 1.0, recipe.batches)
        trained = _mu_with_training_noise(recipe, trained_for)
        guarantee = chien.theorem_3_2(
            **problem.theirs(batch_size, 1.0), training_epochs=trained_for, epochs=1
        )
        for epsilon, sigma in zip(table["epsilon"], table[data][name], strict=True):
            theirs = _theirs_for_one_epoch(guarantee.curve, problem.delta, float(epsilon))
            allowed = gaussian.mu_of(epsilon=float(epsilon), delta=problem.delta)
            mu = trained / (sigma * scale)
            yield {
                "data": data,
                "batch_size": batch_size,
                "epsilon": epsilon,
                "sigma": sigma,
                "sigma_with_their_bound": theirs,
                # The paper cuts after four decimals.
                "reproduced": math.floor(theirs * 1e4) == round(sigma * 1e4),
                "true_epsilon": gaussian.epsilon_of(mu=mu, delta=problem.delta),
                "our_sigma": fresh / allowed / scale,
                "our_sigma_with_training_noise": trained / allowed / scale,
            }


def _theirs_for_one_epoch(curve: Callable[[float], float], delta: float, epsilon: float) -> float:
    """Return the smallest sigma with which Theorem 3.2 and Mironov's conversion give epsilon."""
    orders = [1 + math.exp(point / 400) for point in range(-1600, 4800)]
    gains = {order: -math.log(delta) / (order - 1) for order in orders}
    # The bound is divergence / sigma^2 + gain <= epsilon at some order.
    return math.sqrt(
        min(curve(order) / (epsilon - gain) for order, gain in gains.items() if gain < epsilon)
    )


def _mu_with_training_noise(recipe: Recipe, epochs: int) -> float:
    """Return mu where the noise of training counts, for a record in the last batch."""
    history = (
        History(recipe)
        .after_steps(epochs * recipe.batches, noise_std=1.0)
        .after_request({recipe.batches - 1: 1})
        .after_steps(recipe.batches, noise_std=1.0)
    )
    return ProjectedNoisySgd(history=history).account().mu


TITLES = {
    "gradient_clipping": "Koloskova et al. 2025, Tables 5, 7 and 12 to 15: gradient clipping",
    "model_clipping": "Koloskova et al. 2025, Tables 6 and 8: model clipping",
    "output_perturbation": "Koloskova et al. 2025, Tables 9 and 10: output perturbation",
    "requests": "Chien et al. 2024, Figures 3c and 3d: 100 requests at (0.01, 1/n)",
    "one_epoch": "Chien et al. 2024, Table 3: one epoch of unlearning at (epsilon, 1/n)",
}


def compute() -> dict[str, Any]:
    """Return every table, by paper."""
    papers = ("koloskova-2025", "chien-2024")
    first, second = (json.loads((PUBLISHED / f"{paper}.json").read_text()) for paper in papers)
    delta, problem = first["delta"], Problem.of(second["setting"])
    return {
        "koloskova": {
            "delta": delta,
            "mu_of_target": gaussian.mu_of(epsilon=1.0, delta=delta),
            "gradient_clipping": list(gradient_clipping_rows(first["gradient_clipping"], delta)),
            "model_clipping": list(model_clipping_rows(first["model_clipping"], delta)),
            "output_perturbation": [*output_perturbation_rows(first["output_perturbation"], delta)],
        },
        "chien": {
            "setting": second["setting"],
            "mu_of_target": gaussian.mu_of(epsilon=problem.epsilon, delta=problem.delta),
            "requests": list(request_rows(second)),
            "one_epoch": list(one_epoch_rows(second)),
        },
    }


def _tables(document: dict[str, Any]) -> dict[str, list[Row]]:
    """Return all rows, by title."""
    titles = TITLES.items()
    return {
        title: paper[name] for paper in document.values() for name, title in titles if name in paper
    }


def _lost(rows: list[Row]) -> int:
    """Return how many of the papers' rows are not reproduced."""
    return sum(row.get("rows", 1) for row in rows if not row["reproduced"])


def table(document: dict[str, Any]) -> str:
    """Return every setting, and how many published rows are not reproduced."""
    shown, counts = list[str](), list[tuple[str, int, int]]()
    for title, rows in _tables(document).items():
        cells = (map(_cell, row.values()) for row in rows)
        shown.append(f"{title}\n\n{harness.table(' | '.join(rows[0]), cells)}")
        counts.append((title, sum(row.get("rows", 1) for row in rows), _lost(rows)))
    counts.append(("all", sum(known for _, known, _ in counts), sum(lost for *_, lost in counts)))
    return "\n\n".join([*shown, harness.table("paper | rows | disagreements", counts)])


def met(document: dict[str, Any]) -> bool:
    """Say whether every row is reproduced."""
    return not any(map(_lost, _tables(document).values()))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    harness.main("published_tables", __doc__, lambda _: [compute()], table=table, met=met)

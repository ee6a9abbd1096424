"""Unlearning against retraining at the same cost: Koloskova et al. 2025, Figure 1, done again.

``python -m benchmarks.unlearning_vs_retraining``: a tenth of the training pictures is forgotten.
Each arm gets the same budget, in epochs of the retained pictures and noisy steps included, and is
scored on the test pictures. Noisy mechanisms take the service's own road at the true (1, 1e-5), in
the reference frame; only who is forgotten has a seed. Beside them runs a control, which skips the
original and every noisy step: it starts from noise of the size that the noisy phase ends with, and
has as many steps left. Where both score the same, nothing of the original was used. A GPU is used
where there is one; without it, CIFAR-10 runs on a smaller grid, which the result states.
"""

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from benchmarks import harness
from benchmarks.data import Pictures, load, network_of
from workers.mechanisms.catalogue import rule_of
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Certified, Sealed
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network, Tensors
from workers.training.noisy_phase import RandomBatches
from workers.training.team import choose_device

EPSILON: Final = 1.0
DELTA: Final = 1e-5
METHODS: Final = (output_perturbation.NAME, gradient_clipping.NAME, model_clipping.NAME)
FORGOTTEN_SHARE: Final = 0.1


@dataclass(frozen=True)
class Arm:
    """One line of the comparison."""

    method: str
    control: bool = False


RETRAINING: Final = Arm("retraining")
OURS: Final = Arm(gradient_clipping.NAME)
OUR_CONTROL: Final = Arm(gradient_clipping.NAME, control=True)


@dataclass(frozen=True)
class Outcome:
    """What one run of one arm gave."""

    accuracy: float
    epsilon: float = 0.0
    noisy_steps: int = 0
    end_std: float = 0.0


class Case:
    """A request to forget a random tenth of the training pictures."""

    def __init__(self, pictures: Pictures, recipe: TrainingRecipe, *, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(pictures.train))
        self._pictures = pictures
        self._recipe = recipe
        self._retain = pictures.train.select(order[int(len(order) * FORGOTTEN_SHARE) :])
        self._steps_per_epoch = self._retain.steps_per_epoch(recipe.batch_size)
        self._original: Tensors = {}

    def train_original(self, *, epochs: float) -> float:
        """Train the original on all training pictures; return its accuracy."""
        network = Network(self._factory, device=self._retain.device)
        network.train(self._pictures.train, self._recipe, epochs=epochs)
        self._original = network.tensors()
        return network.evaluate(self._pictures.test).score

    def run(self, arm: Arm, *, budget: float) -> Outcome:
        """Answer the request within ``budget`` epochs of the retained pictures."""
        if arm == RETRAINING:
            return Outcome(self._tune(self._fresh(), 0, budget))
        shape = ModelShape(
            retained=len(self._retain),
            batch_size=self._recipe.batch_size,
            recipe_epochs=self._recipe.epochs,
        )
        policy = Policy(epsilon=EPSILON, delta=DELTA, mechanism=arm.method, budget_epochs=budget)
        plan = make_plan(policy=policy, shape=shape)
        steps, end_std = rule_of(plan).steps, plan.predicted["noise_per_coordinate"]
        frame = ReferenceFrame.of(self._factory)
        start: Network | Certified
        if arm.control:
            start = self._fresh()
            noise = end_std * torch.randn_like(start.flat.values)
            frame.on(start.flat).weights_at(noise, out=start.flat.held)
        else:
            size = self._recipe.batch_size
            start = unlearned(plan, self._factory, self._original, self._retain, size, frame)
        return Outcome(self._tune(start, steps, budget), EPSILON, steps, end_std)

    def _tune(self, model: Network | Certified, spent_steps: int, budget: float) -> float:
        """Train for what is left of the budget; return the accuracy."""
        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        tune(self._retain, self._recipe, epochs=budget - spent_steps / self._steps_per_epoch)
        return model.evaluate(self._pictures.test).score

    def _fresh(self) -> Network:
        return Network(self._factory, device=self._retain.device)

    def _factory(self) -> nn.Module:
        return network_of(self._pictures.architecture, self._retain)


def unlearned(
    plan: Plan,
    factory: Callable[[], nn.Module],
    original: Tensors,
    retain: Examples,
    batch_size: int,
    frame: ReferenceFrame,
) -> Certified:
    """Return an original after a plan's noisy steps, as the service takes them."""
    sealed = Sealed(factory, epsilon=EPSILON, delta=DELTA, device=retain.device)
    noise = SecureNoise()
    try:
        sealed.load(original)
        rule = rule_of(plan)
        sealed.unlearn(rule, RandomBatches(retain, batch_size), frame=frame, noise=noise)
        certified = sealed.open()
    finally:
        noise.destroy()
        sealed.destroy()
    harness.require(certified.noisy_steps == rule.steps, "all noisy steps are taken")
    return certified


_TITLES: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "8 x 8 digits"}
_POINTS_UNDER_RETRAINING: Final = 6
_STYLES: Final = {
    "retraining": ("k", "o"),
    "gradient_clipping": ("C0", "s"),
    "model_clipping": ("C1", "^"),
    "output_perturbation": ("C3", "v"),
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """How much of a data set's comparison is run.

    Attributes:
        learning_rate: peak of the one-cycle schedule; plain SGD, as in the paper's Tables 3 and 4.
        budgets: in epochs; at these all arms run.
        narrow_budgets: at these only retraining and gradient clipping with its control run.
        controlled: mechanisms that have their control beside them.
        repeats, narrow_repeats: each with its own forgotten pictures and its own original.
        original_epochs: how long the original is trained.
    """

    learning_rate: float
    budgets: tuple[float, ...]
    narrow_budgets: tuple[float, ...]
    controlled: tuple[str, ...]
    repeats: int
    original_epochs: float
    narrow_repeats: int = 0

    @property
    def seeds(self) -> int:
        """How many repeats there are at most."""
        return max(self.repeats, self.narrow_repeats if self.narrow_budgets else 0)

    def arms(self, repeat: int) -> Iterator[tuple[float, Arm]]:
        """Yield every budget with every arm that runs at it in a repeat, counted from 0."""
        for budget in self.budgets if repeat < self.repeats else ():
            yield budget, RETRAINING
            for method in METHODS:
                yield budget, Arm(method)
                if method in self.controlled:
                    yield budget, Arm(method, control=True)
        for budget in self.narrow_budgets if repeat < self.narrow_repeats else ():
            yield from ((budget, arm) for arm in (RETRAINING, OURS, OUR_CONTROL))


# One CPU core takes about 16 s an epoch of CIFAR-10: its grid there is two hours, and the narrow
# part most of it.
GRIDS: Final = {
    "digits": Grid(0.06, (5, 20, 60), (), METHODS, repeats=3, original_epochs=100),
    "mnist": Grid(0.06, (1, 2, 3, 5, 10), (), METHODS, repeats=12, original_epochs=30),
    "cifar10": Grid(0.1, (1, 4, 10, 25, 50), (), METHODS, repeats=3, original_epochs=100),
    "cifar10 on a CPU": Grid(
        0.1, (1, 4), (10,), (OURS.method,), repeats=3, original_epochs=5, narrow_repeats=9
    ),
}


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures so far after every repeat; another data set's earlier ones stay."""
    device, path = choose_device(), given.results
    document = json.loads(path.read_text()) if path and path.exists() else {}
    for name in given.dataset:
        pictures = load(name).to(device)
        slow = pictures.name == "cifar10" and device.type != "cuda"
        grid = GRIDS["cifar10 on a CPU" if slow else pictures.name]
        if given.budgets:
            grid = replace(grid, budgets=tuple(given.budgets), narrow_budgets=())
        if given.seeds:
            grid = replace(grid, repeats=given.seeds, narrow_repeats=given.seeds)
        for figures in measure(pictures, grid):
            document[pictures.name] = figures
            print(f"{pictures.name}: {figures['repeats_done']} of {grid.seeds} repeats done")
            yield document


def measure(pictures: Pictures, grid: Grid) -> Iterator[dict[str, Any]]:
    """Run the comparison; yield the figures so far after every repeat."""
    recipe = TrainingRecipe(learning_rate=grid.learning_rate, momentum=0.0, held_out_fraction=0.0)
    started = time.perf_counter()
    originals: list[float] = []
    rows: dict[tuple[float, Arm], Row] = {}
    for seed in range(grid.seeds):
        case = Case(pictures, recipe, seed=seed)
        originals.append(case.train_original(epochs=grid.original_epochs))
        for budget, arm in grid.arms(seed):
            outcome = asdict(case.run(arm, budget=budget))
            accuracy = outcome.pop("accuracy")
            row = {"budget_epochs": budget, **asdict(arm), **outcome, "accuracies": []}
            rows.setdefault((budget, arm), row)["accuracies"].append(accuracy)
        for row in rows.values():
            row["mean"], row["standard_error"] = harness.mean_and_error(row["accuracies"])
        yield {
            "data": pictures.name,
            "note": pictures.note,
            "environment": harness.machine(pictures.train.device),
            "forgotten_share": FORGOTTEN_SHARE,
            "grid": asdict(grid),
            "repeats_done": seed + 1,
            "recipe": recipe.to_json(),
            "wall_s": time.perf_counter() - started,
            "original_accuracies": originals,
            "rows": list(rows.values()),
            "gradient_clipping_against_retraining": comparison(rows, RETRAINING),
            "gradient_clipping_against_random_start": comparison(rows, OUR_CONTROL),
        }


def comparison(rows: Mapping[tuple[float, Arm], Row], other: Arm) -> list[Row]:
    """Return, by budget, gradient clipping minus ``other``, and whether it is not worse."""
    verdicts = []
    for budget in sorted(budget for budget, arm in rows if arm == other):
        ours, theirs = rows[budget, OURS], rows[budget, other]
        difference = ours["mean"] - theirs["mean"]
        error = math.hypot(ours["standard_error"] or 0.0, theirs["standard_error"] or 0.0)
        verdicts.append(
            {
                "budget_epochs": budget,
                "difference": difference,
                "standard_error": error,
                "as_good_within_one_standard_error": difference >= -error,
            }
        )
    return verdicts


def _arms(figures: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each arm, by its name for readers."""
    arms: dict[str, list[Row]] = {}
    for row in figures["rows"]:
        name = row["method"].replace("_", " ") + (", random start" if row["control"] else "")
        arms.setdefault(name, []).append(row)
    return arms


def table(document: Mapping[str, Any]) -> str:
    """Return accuracies in per cent by data set, arm and budget."""
    budgets = sorted({row["budget_epochs"] for each in document.values() for row in each["rows"]})
    lines = []
    for name, figures in document.items():
        for arm, rows in _arms(figures).items():
            cells = {row["budget_epochs"]: _cell(row) for row in rows}
            lines.append((_TITLES[name], arm, *(cells.get(budget, "") for budget in budgets)))
    head = " | ".join(f"{budget:g} epoch{'' if budget == 1 else 's'}" for budget in budgets)
    return harness.table(f"data | | {head}", lines)


def _cell(row: Row) -> str:
    error = f" ± {100 * row['standard_error']:.1f}" if len(row["accuracies"]) > 1 else ""
    return f"{100 * row['mean']:.1f}{error}"


def figure(document: Mapping[str, Any], path: Path) -> Path:
    """Draw accuracy against budget, a column for each data set."""
    columns = len(document)
    with harness.picture(path, (6.3 * columns, 5.6), columns=columns) as (_, (axes,)):
        for axis, (name, figures) in zip(axes, document.items(), strict=True):
            _panel(axis, _arms(figures))
            axis.set_title(f"{_TITLES[name]}: (1, 1e-5)")
            axis.set_ylabel("test accuracy, %")
    return path


def _panel(axis: Any, arms: Mapping[str, Sequence[Row]]) -> None:
    """Draw the arms; the axis is cut a little under retraining."""
    for number, (name, rows) in enumerate(arms.items()):
        colour, marker = _STYLES[rows[0]["method"]]
        control = rows[0]["control"]
        # Lines that lie on each other stay apart by a little.
        shift = 1 + 0.012 * (number - len(arms) / 2)
        apart = [row | {"at": row["budget_epochs"] * shift} for row in rows]
        style = f"{'--' if control else '-'}{marker}"
        how = {"color": colour, "markerfacecolor": "white" if control else colour, "label": name}
        harness.plot(axis, apart, "at", "mean", style, error="standard_error", scale=100, **how)
    budgets = sorted({row["budget_epochs"] for rows in arms.values() for row in rows})
    axis.set(xscale="log", xlabel="budget, epochs of the retained pictures")
    axis.set_ylim(100 * min(row["mean"] for row in arms["retraining"]) - _POINTS_UNDER_RETRAINING)
    axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axis.minorticks_off()
    how = {"fontsize": 8.5, "ncols": 2, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    axis.legend(**how)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    data = ["mnist", "cifar10"]
    options = {
        "--dataset": {"nargs": "+", "choices": (*data, "digits"), "default": data},
        "--seeds": {"type": int, "help": "repeats, instead of the data set's own number"},
        "--budgets": {"type": float, "nargs": "+", "help": "epochs; all arms run at each"},
    }
    how = {"options": options, "table": table, "figure": figure, "arguments": arguments}
    harness.main("unlearning_vs_retraining", __doc__, run, **how)


if __name__ == "__main__":
    main()

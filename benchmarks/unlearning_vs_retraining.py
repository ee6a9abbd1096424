"""Unlearning against retraining at the same cost: Koloskova et al. 2025, Figure 1, done again.

    python -m benchmarks.unlearning_vs_retraining [--dataset mnist cifar10] [--seeds 3]

A tenth of the training pictures is forgotten. Each arm gets the same budget, in epochs of the
retained pictures and noisy steps included, and is scored on the test pictures. Noisy mechanisms run
at the true (1, 1e-5) with our planning in the reference frame. Beside them runs a random start of
the same scale.

The figures go to benchmarks/results/unlearning_vs_retraining.json and .png. A GPU is used where
there is one; without it, CIFAR-10 runs on a smaller grid, which the result states.
"""

import argparse
import json
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from app.domain.recipes.recipe import TrainingRecipe
from benchmarks import harness, unlearning_figures
from benchmarks.data import Pictures, load
from benchmarks.unlearning_case import (
    FORGOTTEN_SHARE,
    METHODS,
    OUR_CONTROL,
    OURS,
    RETRAINING,
    Arm,
    Case,
)
from workers.training.device import choose_device


@dataclass(frozen=True)
class Grid:
    """How much of a data set's comparison is run.

    Attributes:
        learning_rate: peak of the one-cycle schedule; plain SGD, as in the paper's Tables 3 and 4.
        budgets: in epochs; at these all arms run.
        narrow_budgets: at these only retraining and gradient clipping with its control run.
        controlled: mechanisms that have their control beside them.
        repeats: each with its own forgotten pictures and its own original.
        narrow_repeats: the same for the narrow budgets.
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


DIGITS: Final = Grid(0.06, (5, 20, 60), (), METHODS, repeats=3, original_epochs=100)
MNIST: Final = Grid(0.06, (1, 2, 3, 5, 10), (), METHODS, repeats=12, original_epochs=30)
CIFAR10: Final = Grid(0.1, (1, 4, 10, 25, 50), (), METHODS, repeats=3, original_epochs=100)
# One CPU core takes about 16 s an epoch: this grid is two hours, and the narrow part most of it.
CIFAR10_ON_CPU: Final = Grid(
    0.1, (1, 4), (10,), (OURS.method,), repeats=3, original_epochs=5, narrow_repeats=9
)


def grid_for(data: str, device: torch.device) -> Grid:
    """Return the default grid of a data set."""
    if data == "cifar10":
        return CIFAR10 if device.type == "cuda" else CIFAR10_ON_CPU
    return {"mnist": MNIST, "digits": DIGITS}[data]


def measure(pictures: Pictures, grid: Grid) -> Iterator[dict[str, Any]]:
    """Run the comparison; yield the figures so far after every repeat."""
    recipe = TrainingRecipe(learning_rate=grid.learning_rate, momentum=0.0, held_out_fraction=0.0)
    started = time.perf_counter()
    originals: list[float] = []
    rows: dict[tuple[float, Arm], dict[str, Any]] = {}
    for seed in range(grid.seeds):
        case = Case(pictures, recipe, seed=seed)
        originals.append(case.train_original(epochs=grid.original_epochs))
        for budget, arm in grid.arms(seed):
            outcome = case.run(arm, budget=budget)
            row = rows.setdefault(
                (budget, arm),
                {
                    "budget_epochs": budget,
                    **asdict(arm),
                    "epsilon": outcome.epsilon,
                    "noisy_steps": outcome.noisy_steps,
                    "end_std": outcome.end_std,
                    "accuracies": [],
                },
            )
            row["accuracies"].append(outcome.accuracy)
        yield {
            "data": pictures.name,
            "note": pictures.note,
            "environment": _environment(pictures.train.device),
            "forgotten_share": FORGOTTEN_SHARE,
            "grid": asdict(grid),
            "repeats_done": seed + 1,
            "recipe": recipe.to_json(),
            "wall_s": time.perf_counter() - started,
            "original_accuracies": originals,
            **unlearning_figures.summary(list(rows.values())),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    options = _options(arguments)
    device = choose_device()
    for name in options.dataset:
        pictures = load(name).to(device)
        grid = grid_for(pictures.name, device)
        if options.budgets:
            grid = replace(grid, budgets=tuple(options.budgets), narrow_budgets=())
        if options.seeds:
            grid = replace(grid, repeats=options.seeds, narrow_repeats=options.seeds)
        for figures in measure(pictures, grid):
            document = earlier(options.out) | {pictures.name: figures}
            harness.write(document, options.out)
            print(f"{pictures.name}: {figures['repeats_done']} of {grid.seeds} repeats done")
        unlearning_figures.show(figures)
    unlearning_figures.draw(earlier(options.out), options.out.with_suffix(".png"))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Unlearning against retraining at equal cost.")
    parser.add_argument(
        "--dataset",
        nargs="+",
        choices=("mnist", "cifar10", "digits"),
        default=["mnist", "cifar10"],
    )
    parser.add_argument("--seeds", type=int, help="repeats, instead of the data set's own number")
    parser.add_argument("--budgets", type=float, nargs="+", help="epochs; all arms run at each")
    parser.add_argument(
        "--out",
        type=Path,
        default=harness.RESULTS / "unlearning_vs_retraining.json",
        help="JSON file; the plot lies beside",
    )
    return parser.parse_args(arguments)


def earlier(path: Path) -> dict[str, Any]:
    """Return the figures of an earlier run: another data set's stay as they are."""
    return json.loads(path.read_text()) if path.exists() else {}


def _environment(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": gpu or f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()

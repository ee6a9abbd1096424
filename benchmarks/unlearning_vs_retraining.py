"""Unlearning against retraining that was tuned: ``python -m benchmarks.unlearning_vs_retraining``.

Koloskova et al. 2025, Figures 1 and 2 and Table 2, done again: one original is trained on all
pictures, a random tenth is forgotten in each repeat, and each arm is scored on the test pictures
after each budget, in epochs of the retained pictures and noisy steps included. Noisy mechanisms
take the service's own road at the true (1, 1e-5), in the reference frame. Beside each runs its
control, which skips the original and every noisy step: it starts from noise of the size that the
noisy phase ends with, and has as many steps left. Where both score the same, nothing of the
original was used.

With ``--schedule constant``, as in the paper's section 5.1, one training is scored at all budgets,
its plan made for one epoch or the shortest if that is longer; with ``one_cycle``, as in appendix B,
each budget is planned and trained for. ``--halved`` averages 2 x 2 pixels: a quarter of the work.

Noise leaves weights as large as the frame's scale, so a frame is worth what its start is worth to
retraining. Retraining's start and rate are tuned together, then its decay, by training pictures
that are held out; every arm takes the best rate of its start. Starts are the network's own,
multiples of it, and raw weights of one size: model clipping as published for epsilon = 1, and truly
so, clips and noises raw weights at 0.5 (CIFAR-10, Table 8) or 0.01 (MNIST, Table 6). All arms run
at the network's own start; retraining and clipping at the best other one. On CIFAR-10 gradient
clipping runs as in Figure 2, too, on raw weights: it is truly at epsilon = 6.4.
"""

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.accounting import gradient_clipping, model_clipping, output_perturbation
from app.domain.plan import Plan
from app.domain.policy import Policy
from app.domain.recipes import TrainingRecipe
from app.planning.planner import make_plan
from app.planning.shape import ModelShape
from benchmarks import harness
from benchmarks.data import Pictures, load, network_of
from workers.data.memory import keep_freed
from workers.mechanisms.catalogue import rule_of
from workers.noise.generators import SecureNoise
from workers.seal.sealed import Certified, Sealed
from workers.training.examples import Examples
from workers.training.frame import ReferenceFrame
from workers.training.networks.network import Network, Tensors
from workers.training.noisy_phase import RandomBatches
from workers.training.tasks.task import INPUTS, TARGET
from workers.training.team import choose_device

EPSILON: Final = 1.0
DELTA: Final = 1e-5
METHODS: Final = (output_perturbation.NAME, gradient_clipping.NAME, model_clipping.NAME)
FORGOTTEN_SHARE: Final = 0.1
RATES: Final = (0.06, 0.1, 0.3, 1.0)
DECAYS: Final = (0.0, 5e-4, 5e-3)
OWN: Final = "own"
RAW: Final = {"mnist": 0.01, "cifar10": 0.5, "digits": 0.1}
_FACTORS: Final = (0.5, 2, 4)
_ORDER_SEED: Final = 17
AS_PUBLISHED: Final = "gradient clipping as published"
FIGURE_2: Final = {"initial_clip": 20.0, "gradient_clip": 10.0, "learning_rate": 0.01}
FIGURE_2 |= {"weight_decay": 50.0, "noise_std": 0.25, "steps": 30}
FIGURE_2_EPSILON: Final = 6.415396  # that not one step fewer meets
RETRAINING: Final = "retraining"

Start = Callable[[nn.Module], nn.Module]
Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One line of the comparison."""

    method: str
    start: str = OWN
    control: bool = False
    epsilon: float = EPSILON


@dataclass(frozen=True, eq=False)
class Case:
    """A request to forget a random tenth of the training pictures.

    ``start`` changes a network that was just initialised; the reference frame is of such networks.
    """

    pictures: Pictures
    recipe: TrainingRecipe
    seed: int
    start: Start
    original: Tensors = field(default_factory=dict)

    @cached_property
    def retain(self) -> Examples:
        """Return the pictures that are not forgotten."""
        order = np.random.default_rng(self.seed).permutation(len(self.pictures.train))
        return self.pictures.train.select(order[int(len(order) * FORGOTTEN_SHARE) :])

    def run(self, arm: Arm, budgets: Sequence[float]) -> list[Row]:
        """Return how accurate the answer is before it is tuned and after each budget."""
        if arm.method == RETRAINING:
            return self._tune(self._fresh(), 0, budgets)
        size = self.recipe.batch_size
        shape = ModelShape(len(self.retain), batch_size=size, recipe_epochs=self.recipe.epochs)
        given: Row = {"mechanism": arm.method, "budget_epochs": max(1.0, budgets[0])}
        frame = ReferenceFrame.of(self._factory)
        if arm.method == AS_PUBLISHED:
            given = {"mechanism": gradient_clipping.NAME, "budget_epochs": budgets[-1]}
            given["parameters"] = FIGURE_2
            frame = replace(frame, scale=dict.fromkeys(frame.scale, 1.0))
        policy = Policy(epsilon=arm.epsilon, delta=DELTA, **given)
        plan = make_plan(policy=policy, shape=shape)
        steps, end_std = rule_of(plan).steps, plan.predicted["noise_per_coordinate"]
        start: Network | Certified
        if arm.control:
            start = self._fresh()
            noise = end_std * torch.randn_like(start.flat.values)
            frame.on(start.flat).weights_at(noise, out=start.flat.held)
        else:
            start = unlearned(plan, self._factory, self.original, self.retain, size, frame)
        found = self._tune(start, steps, budgets)
        return [row | {"noisy_steps": steps, "end_std": end_std} for row in found]

    def _tune(self, model: Network | Certified, spent: int, budgets: Sequence[float]) -> list[Row]:
        """Train for what ``spent`` steps left of the longest budget; score at all of them."""
        per_epoch = self.retain.steps_per_epoch(self.recipe.batch_size)
        budget_of = {round(each * per_epoch) - spent: each for each in budgets}
        rows: list[Row] = []

        def score(step: int, *_: object) -> None:
            if step in budget_of:
                accuracy = model.evaluate(self.pictures.test).score
                rows.append({"budget_epochs": budget_of[step], "accuracy": accuracy})

        budget_of.setdefault(0, spent / per_epoch)
        score(0)
        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        epochs = max(budget_of) / per_epoch
        tune(self.retain, self.recipe, epochs=epochs, on_progress=score)
        return rows

    def _fresh(self) -> Network:
        return Network(self._factory, device=self.retain.device)

    def _factory(self) -> nn.Module:
        return self.start(network_of(self.pictures.architecture, self.retain))


def unlearned(
    plan: Plan,
    factory: Callable[[], nn.Module],
    original: Tensors,
    retain: Examples,
    batch_size: int,
    frame: ReferenceFrame,
) -> Certified:
    """Return an original after a plan's noisy steps, as the service takes them."""
    sealed = Sealed(factory, epsilon=plan.epsilon, delta=plan.delta, device=retain.device)
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


def starts_of(name: str) -> Mapping[str, Start]:
    """Return the starts that are tried on a data set, the network's own first, raw weights last.

    Of data without raw weights only the network's own is.
    """
    own: dict[str, Start] = {OWN: _started}
    starts = own | {f"{factor:g} times": partial(_started, factor=factor) for factor in _FACTORS}
    return starts | {f"raw {RAW[name]:g}": partial(_started, std=RAW[name])} if name in RAW else own


def _started(module: nn.Module, *, factor: float = 1.0, std: float | None = None) -> nn.Module:
    """Multiply all weights as they were initialised, or draw all from one normal distribution."""
    for tensor in module.parameters():
        tensor.data.mul_(factor) if std is None else nn.init.normal_(tensor, std=std)
    return module


def recipe_of(rate: float, decay: float, schedule: str) -> TrainingRecipe:
    """Return plain SGD, as in the paper."""
    given = {"learning_rate": rate, "weight_decay": decay, "momentum": 0.0, "schedule": schedule}
    return TrainingRecipe(**given, held_out_fraction=0.0)


def tuned(pictures: Pictures, *, budget: float, schedule: str) -> list[Row]:
    """Return held-out accuracies of retraining by start, rate and decay, one training each."""
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.train))
    held_out, rest = np.split(order, [len(order) // 10])
    parts = {"train": pictures.train.select(rest), "test": pictures.train.select(held_out)}
    inner, starts, rows = replace(pictures, **parts), starts_of(pictures.name), list[Row]()

    def score(start: str, rate: float, decay: float) -> None:
        recipe = recipe_of(rate, decay, schedule)
        case = Case(inner, recipe, _ORDER_SEED, starts[start])
        row = {"start": start, "learning_rate": rate, "weight_decay": decay}
        rows.append(row | {"accuracy": case.run(Arm(RETRAINING), [budget])[-1]["accuracy"]})

    for start in starts:
        for rate in RATES:
            score(start, rate, DECAYS[1])
    best = best_of(rows)
    for decay in (DECAYS[0], DECAYS[2]):
        score(best["start"], best["learning_rate"], decay)
    return rows


def best_of(tuning: Sequence[Row], *, start: str | None = None, other: str = "") -> Row:
    """Return the row of the highest held-out accuracy, of one start or of all but one."""
    rows = (row for row in tuning if start in (None, row["start"]) and row["start"] != other)
    return max(rows, key=lambda row: row["accuracy"])


def arms(starts: Sequence[str], *, figure_2: bool = False) -> Iterator[Arm]:
    """Yield every arm at the network's own start, and retraining and clipping at the others."""
    yield Arm(RETRAINING)
    for method in METHODS:
        yield from (Arm(method, control=control) for control in (False, True))
    for start in starts:
        if start != OWN:
            yield from (Arm(method, start) for method in (RETRAINING, *METHODS[1:]))
    if figure_2:
        how = {"epsilon": FIGURE_2_EPSILON}
        yield from (Arm(AS_PUBLISHED, control=control, **how) for control in (False, True))


def measure(
    pictures: Pictures,
    given: Namespace,
    *,
    schedule: str,
    arms: Callable[[Sequence[str]], Iterable[Arm]] = arms,
) -> Iterator[dict[str, Any]]:
    """Yield the figures so far after every repeat; ``arms`` are those of the starts shown."""
    started = time.perf_counter()
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.train))
    pictures = replace(pictures, train=pictures.train.select(order[: given.records]))
    starts = starts_of(pictures.name)
    tuning = tuned(pictures, budget=given.budgets[len(given.budgets) // 2], schedule=schedule)
    decay = best_of(tuning)["weight_decay"]
    other = best_of(tuning, other=OWN if len(starts) > 1 else "")["start"]
    rates = {start: best_of(tuning, start=start)["learning_rate"] for start in (OWN, other)}
    factory = partial(network_of, pictures.architecture, pictures.train)
    original = Network(factory, device=pictures.train.device)
    recipe = recipe_of(rates[OWN], decay, "one_cycle")
    original.train(pictures.train, recipe, epochs=given.original_epochs)
    tensors = original.tensors()
    rows: dict[tuple[float, Arm], Row] = {}
    constant = schedule == "constant"
    for seed in range(given.seeds):
        cases = {
            start: Case(pictures, recipe_of(rate, decay, schedule), seed, starts[start], tensors)
            for start, rate in rates.items()
        }
        for arm in arms(list(rates)):
            for budgets in [given.budgets] if constant else [[each] for each in given.budgets]:
                for outcome in cases[arm.start].run(arm, budgets)[not constant :]:
                    accuracy = outcome.pop("accuracy")
                    row = asdict(arm) | outcome | {"accuracies": []}
                    rows.setdefault((row["budget_epochs"], arm), row)["accuracies"].append(accuracy)
        for row in rows.values():
            row["mean"], row["standard_error"] = harness.mean_and_error(row["accuracies"])
        yield {
            "note": pictures.note,
            "environment": harness.machine(pictures.train.device),
            "records": len(pictures.train),
            "tested": len(pictures.test),
            "schedule": schedule,
            "tuning": tuning,
            "learning_rates": rates,
            "weight_decay": decay,
            "original_epochs": given.original_epochs,
            "original_accuracies": [original.evaluate(pictures.test).score],
            "rows": list(rows.values()),
            "wall_s": round(time.perf_counter() - started, 1),
        }


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures so far; another data set's earlier ones stay."""
    keep_freed()  # as workers do
    document = harness.earlier(given)
    pictures = load(given.dataset).to(choose_device())
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.test))
    pictures = replace(pictures, test=pictures.test.select(order[: given.records // 2]))
    if given.halved:
        parts = {"train": halved(pictures.train), "test": halved(pictures.test)}
        note = f"{pictures.note}; every 2 x 2 pixels are averaged"
        pictures = replace(pictures, **parts, note=note)
    size = f" at {pictures.train.inputs.shape[-1]} pixels" if given.halved else ""
    shown = partial(arms, figure_2=pictures.name == "cifar10")
    for found in measure(pictures, given, schedule=given.schedule, arms=shown):
        yield document | {f"{pictures.name}{size}, {found['records']:,} pictures": found}


def halved(examples: Examples) -> Examples:
    """Return pictures of half the height and width."""
    pixels = nn.functional.avg_pool2d(examples.inputs.float(), 2).round().to(torch.uint8)
    form = replace(examples.form, shape=tuple(pixels.shape[1:]))
    return Examples.of(form, {INPUTS: pixels, TARGET: examples.target})


def table(document: dict[str, Any]) -> str:
    """Return accuracies at the longest budget, and with one training for all, epochs to reach some.

    All are truly at epsilon = 1 or exact; in brackets stands what the random start does.
    """
    lines = []
    for name, found in document.items():
        for start in found["learning_rates"]:
            curves: dict[tuple[str, bool], list[Row]] = {}
            for row in found["rows"]:
                if row["start"] == start and row["method"] != AS_PUBLISHED:
                    curves.setdefault((row["method"], row["control"]), []).append(row)
            longest = curves[RETRAINING, False][-1]["budget_epochs"]
            last = {arm: rows[-1] for arm, rows in curves.items()}
            ends = {arm: cell(row) for arm, row in last.items() if row["budget_epochs"] == longest}
            lines.append((f"{name}, after {longest:g} epochs", start, *_shown(ends)))
            if found.get("schedule") == "constant":
                least = min(min(_peaks(rows)[-1]) for rows in curves.values())
                for target in range(5 * int(20 * least) - 5, int(100 * least) + 1, 5):
                    epochs = {arm: epochs_to(target / 100, rows) for arm, rows in curves.items()}
                    lines.append((f"epochs to {target} %", start, *_shown(epochs)))
    named = " | ".join((RETRAINING, *METHODS)).replace("_", " ")
    return harness.table(f"data | start | {named}", lines)


def _shown(cells: Mapping[tuple[str, bool], str]) -> Iterator[str]:
    for method in (RETRAINING, *METHODS):
        control = cells.get((method, True))
        yield cells.get((method, False), "") + (f" ({control})" if control else "")


def _peaks(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the best accuracy so far, [budgets, repeats]."""
    return np.maximum.accumulate([row["accuracies"] for row in rows])


def epochs_to(target: float, rows: Sequence[Row]) -> str:
    """Return after how many epochs a curve reaches an accuracy, between budgets by a line."""
    budgets = [row["budget_epochs"] for row in rows]
    found = [float(np.interp(target, peaks, budgets)) for peaks in _peaks(rows).T]
    mean, error = harness.mean_and_error(found)
    return f"{mean:.1f} ± {error:.1f}" if error is not None else f"{mean:.1f}"


def cell(row: Row) -> str:
    """Return an accuracy and its error, in percent."""
    error = f" ± {100 * row['standard_error']:.1f}" if row["standard_error"] else ""
    return f"{100 * row['mean']:.1f}{error}"


_STYLES: Final = {
    RETRAINING: ("k", "o"),
    "gradient_clipping": ("C0", "s"),
    "model_clipping": ("C1", "^"),
    "output_perturbation": ("C3", "v"),
    AS_PUBLISHED: ("C2", "D"),
}
_COLUMNS: Final = 3


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw accuracy against budget, a panel for each data set and start, and one of Figure 2."""
    panels = []
    for name, found in document.items():
        for start in found["learning_rates"]:
            rows = [row for row in found["rows"] if row["start"] == start]
            for title, methods in ((f"start: {start}", METHODS), ("Figure 2", (AS_PUBLISHED,))):
                some = [row for row in rows if row["method"] in (RETRAINING, *methods)]
                if any(row["method"] in methods for row in some):
                    panels.append((f"{name}, {title}", some, found["original_accuracies"]))
    height = math.ceil(len(panels) / _COLUMNS)
    how = {"rows": height, "columns": _COLUMNS}
    with harness.picture(path, (6 * _COLUMNS, 5 * height), **how) as (_, axes):
        for axis, (title, rows, originals) in zip(axes.flat, panels, strict=False):
            axis.axhline(100 * fmean(originals), color="C4", label="the original")
            panel(axis, rows)
            axis.set_title(title)
        for axis in axes.flat[len(panels) :]:
            axis.remove()


def panel(axis: Any, rows: Sequence[Row]) -> None:
    """Draw accuracy against budget, a line for each method and for each random start."""
    for method, (colour, marker) in _STYLES.items():
        for control in (False, True):
            some = [row for row in rows if (row["method"], row["control"]) == (method, control)]
            if some:
                label = method.replace("_", " ") + (", random start" if control else "")
                face = "white" if control else colour
                how: Row = {"color": colour, "markerfacecolor": face, "label": label}
                style = f"{'--' if control else '-'}{marker}"
                how |= {"error": "standard_error", "scale": 100}
                harness.plot(axis, some, "budget_epochs", "mean", style, **how)
    axis.set_xscale("symlog", linthresh=0.5)
    axis.set_xlabel("budget, epochs of the retained pictures")
    axis.set_ylabel("test accuracy, %")
    axis.legend(fontsize=8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    options = {
        "--dataset": {"choices": ("mnist", "cifar10", "digits"), "default": "cifar10"},
        "--records": {"type": int, "default": 10_000, "help": "to train on"},
        "--budgets": {"type": float, "nargs": "+", "default": [4.0], "help": "epochs"},
        "--seeds": {"type": int, "default": 5},
        "--original-epochs": {"type": float, "default": 5.0},
        "--schedule": {"choices": ("constant", "one_cycle"), "default": "constant"},
        "--halved": {"action": "store_true", "help": "every 2 x 2 pixels averaged"},
    }
    how: Row = {"options": options, "table": table, "figure": figure, "arguments": arguments}
    harness.main("unlearning_vs_retraining", __doc__, run, **how)


if __name__ == "__main__":
    main()

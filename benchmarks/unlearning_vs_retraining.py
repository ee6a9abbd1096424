"""Unlearning against retraining that was tuned: ``python -m benchmarks.unlearning_vs_retraining``.

Koloskova et al. 2025, Figure 1, done again: a tenth of the training pictures is forgotten, each arm
gets the same budget, in epochs of the retained pictures and noisy steps included, and is scored on
the test pictures. Noisy mechanisms take the service's own road at the true (1, 1e-5), in the
reference frame. Beside them runs a control, which skips the original and every noisy step: it
starts from noise of the size that the noisy phase ends with, and has as many steps left. Where both
score the same, nothing of the original was used.

Noise leaves weights as large as the frame's scale, so a frame is worth what its start is worth to
retraining. Retraining's start and rate are tuned together, then its decay, by training pictures
that are held out; every arm takes the best rate of its start. Starts are the network's own,
multiples of it, and raw weights of one size: model clipping as published for epsilon = 1, and truly
so, clips and noises raw weights at 0.5 (CIFAR-10, Table 8) or 0.01 (MNIST, Table 6). All arms run
at the network's own start; retraining and clipping at the best other one and at raw weights.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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
from workers.data.memory import keep_freed
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
RATES: Final = (0.06, 0.1, 0.3, 1.0)
DECAYS: Final = (0.0, 5e-4, 5e-3)
OWN: Final = "own"
RAW: Final = {"mnist": 0.01, "cifar10": 0.5, "digits": 0.1}
_FACTORS: Final = (0.5, 2, 4)
_ORDER_SEED: Final = 17


Start = Callable[[nn.Module], nn.Module]
Row = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One line of the comparison."""

    method: str
    start: str = OWN
    control: bool = False
    epsilon: float = EPSILON


RETRAINING: Final = "retraining"


class Case:
    """A request to forget a random tenth of the training pictures.

    ``start`` changes a network that was just initialised; the reference frame is of such networks.
    """

    def __init__(
        self,
        pictures: Pictures,
        recipe: TrainingRecipe,
        *,
        seed: int,
        start: Callable[[nn.Module], nn.Module] = lambda module: module,
    ) -> None:
        order = np.random.default_rng(seed).permutation(len(pictures.train))
        self._pictures = pictures
        self._recipe = recipe
        self._start = start
        self._retain = pictures.train.select(order[int(len(order) * FORGOTTEN_SHARE) :])
        self._steps_per_epoch = self._retain.steps_per_epoch(recipe.batch_size)
        self._original: Tensors = {}

    def train_original(self, *, epochs: float) -> float:
        """Train the original on all training pictures; return its accuracy."""
        network = Network(self._factory, device=self._retain.device)
        network.train(self._pictures.train, self._recipe, epochs=epochs)
        self._original = network.tensors()
        return network.evaluate(self._pictures.test).score

    def run(self, arm: Arm, *, budget: float) -> Row:
        """Answer the request within ``budget`` epochs of the retained pictures."""
        if arm.method == RETRAINING:
            return {"accuracy": self._tune(self._fresh(), 0, budget)}
        shape = ModelShape(
            retained=len(self._retain),
            batch_size=self._recipe.batch_size,
            recipe_epochs=self._recipe.epochs,
        )
        target = {"epsilon": arm.epsilon, "delta": DELTA}
        policy = Policy(**target, mechanism=arm.method, budget_epochs=budget)
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
        accuracy = self._tune(start, steps, budget)
        return {"accuracy": accuracy, "noisy_steps": steps, "end_std": end_std}

    def _tune(self, model: Network | Certified, spent_steps: int, budget: float) -> float:
        """Train for what is left of the budget; return the accuracy."""
        tune: Callable[..., int] = model.train if isinstance(model, Network) else model.fine_tune
        tune(self._retain, self._recipe, epochs=budget - spent_steps / self._steps_per_epoch)
        return model.evaluate(self._pictures.test).score

    def _fresh(self) -> Network:
        return Network(self._factory, device=self._retain.device)

    def _factory(self) -> nn.Module:
        return self._start(network_of(self._pictures.architecture, self._retain))


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


def multiplied(module: nn.Module, *, factor: float) -> nn.Module:
    """Multiply all weights as they were initialised."""
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.mul_(factor)
    return module


def raw(module: nn.Module, *, std: float) -> nn.Module:
    """Draw all weights from one normal distribution."""
    for tensor in module.parameters():
        nn.init.normal_(tensor, std=std)
    return module


def starts_of(name: str) -> Mapping[str, Start]:
    """Return the starts that are tried on a data set, the network's own first, raw weights last.

    Of data without raw weights only the network's own is.
    """
    own: dict[str, Start] = {OWN: partial(multiplied, factor=1)}
    starts = own | {f"{factor:g} times": partial(multiplied, factor=factor) for factor in _FACTORS}
    return starts | {f"raw {RAW[name]:g}": partial(raw, std=RAW[name])} if name in RAW else own


def recipe_of(rate: float, decay: float) -> TrainingRecipe:
    """Return plain SGD, as in the paper."""
    given = {"learning_rate": rate, "weight_decay": decay, "momentum": 0.0}
    return TrainingRecipe(**given, held_out_fraction=0.0)


def tuned(pictures: Pictures, *, budget: float) -> list[Row]:
    """Return held-out accuracies of retraining by start, rate and decay, one training each."""
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.train))
    held_out, rest = np.split(order, [len(order) // 10])
    parts = {"train": pictures.train.select(rest), "test": pictures.train.select(held_out)}
    inner, starts, rows = replace(pictures, **parts), starts_of(pictures.name), list[Row]()

    def score(start: str, rate: float, decay: float) -> None:
        case = Case(inner, recipe_of(rate, decay), seed=_ORDER_SEED, start=starts[start])
        row = {"start": start, "learning_rate": rate, "weight_decay": decay}
        rows.append(row | {"accuracy": case.run(Arm(RETRAINING), budget=budget)["accuracy"]})

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


def arms(starts: Sequence[str]) -> Iterator[Arm]:
    """Yield every arm at the network's own start, and retraining and clipping at the others."""
    yield Arm(RETRAINING)
    for method in METHODS:
        yield from (Arm(method, control=control) for control in (False, True))
    for start in starts:
        if start != OWN:
            yield from (Arm(method, start) for method in (RETRAINING, *METHODS[1:]))


def measure(
    pictures: Pictures,
    given: Namespace,
    *,
    arms: Callable[[Sequence[str]], Iterable[Arm]] = arms,
    beside: Callable[[int], Iterable[tuple[str, float, float]]] = lambda _: (),
) -> Iterator[dict[str, Any]]:
    """Yield the figures so far after every repeat.

    ``arms`` are those of the starts that are shown; what stands ``beside`` them in a repeat has no
    budget: a name, its accuracy, and gradients as passes over all records.
    """
    started = time.perf_counter()
    order = np.random.default_rng(_ORDER_SEED).permutation(len(pictures.train))
    pictures = replace(pictures, train=pictures.train.select(order[: given.records]))
    starts = starts_of(pictures.name)
    tuning = tuned(pictures, budget=given.budgets[len(given.budgets) // 2])
    decay = best_of(tuning)["weight_decay"]
    other = best_of(tuning, other=OWN if len(starts) > 1 else "")["start"]
    shown = dict.fromkeys([OWN, other, list(starts)[-1]])
    rates = {start: best_of(tuning, start=start)["learning_rate"] for start in shown}
    originals: list[float] = []
    rows: dict[tuple[float, Arm], Row] = {}
    others: dict[str, Row] = {}
    for seed in range(given.seeds):
        cases = {
            start: Case(pictures, recipe_of(rate, decay), seed=seed, start=starts[start])
            for start, rate in rates.items()
        }
        how = {"epochs": given.original_epochs}
        originals += [case.train_original(**how) for case in cases.values()]
        for budget in given.budgets:
            for arm in arms(list(shown)):
                outcome = cases[arm.start].run(arm, budget=budget)
                accuracy = outcome.pop("accuracy")
                row = {"budget_epochs": budget, **asdict(arm), **outcome, "accuracies": []}
                rows.setdefault((budget, arm), row)["accuracies"].append(accuracy)
        for name, accuracy, passes in beside(seed):
            row = {"method": name, "passes": passes, "accuracies": []}
            others.setdefault(name, row)["accuracies"].append(accuracy)
        for row in (*rows.values(), *others.values()):
            row["mean"], row["standard_error"] = harness.mean_and_error(row["accuracies"])
        yield {
            "note": pictures.note,
            "environment": harness.machine(pictures.train.device),
            "records": len(pictures.train),
            "tuning": tuning,
            "learning_rates": rates,
            "weight_decay": decay,
            "original_accuracies": originals,
            "rows": list(rows.values()),
            "beside": list(others.values()),
            "wall_s": round(time.perf_counter() - started, 1),
        }


def run(given: Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures so far; another data set's earlier ones stay."""
    keep_freed()  # as workers do
    document = harness.earlier(given)
    pictures = load(given.dataset).to(choose_device())
    for found in measure(pictures, given):
        yield document | {f"{pictures.name}, {found['records']:,} pictures": found}


def table(document: dict[str, Any]) -> str:
    """Return accuracies at the longest budget, all of them truly at epsilon = 1 or exact."""
    columns = [(RETRAINING, False), *((method, False) for method in METHODS), (METHODS[1], True)]
    lines = []
    for name, found in document.items():
        longest = max(row["budget_epochs"] for row in found["rows"])
        for start in found["learning_rates"]:
            cells = {
                (row["method"], row["control"]): cell(row)
                for row in found["rows"]
                if (row["budget_epochs"], row["start"]) == (longest, start)
            }
            lines.append((name, start, *(cells.get(column, "") for column in columns)))
    named = " | ".join((RETRAINING, *METHODS)).replace("_", " ")
    return harness.table(f"data | start | {named} | a random start", lines)


def cell(row: Row) -> str:
    """Return an accuracy and its error, in percent."""
    error = f" ± {100 * row['standard_error']:.1f}" if row["standard_error"] else ""
    return f"{100 * row['mean']:.1f}{error}"


_STYLES: Final = {
    "retraining": ("k", "o"),
    "gradient_clipping": ("C0", "s"),
    "model_clipping": ("C1", "^"),
    "output_perturbation": ("C3", "v"),
}


def figure(document: dict[str, Any], path: Path) -> None:
    """Draw accuracy against budget, a panel for each data set and start."""
    panels = [(name, start) for name, each in document.items() for start in each["learning_rates"]]
    with harness.picture(path, (6 * len(panels), 5), columns=len(panels)) as (_, (axes,)):
        for axis, (name, start) in zip(axes, panels, strict=True):
            panel(axis, [row for row in document[name]["rows"] if row["start"] == start])
            axis.set_title(f"{name}, start: {start}")


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
    axis.set(xscale="log", xlabel="budget, epochs of the retained pictures")
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
    }
    how: Row = {"options": options, "table": table, "figure": figure, "arguments": arguments}
    harness.main("unlearning_vs_retraining", __doc__, run, **how)


if __name__ == "__main__":
    main()

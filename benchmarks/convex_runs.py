"""The ways to answer sequential requests on a linear head, run and measured.

Our accountants read the lineage's history, so each certificate covers the union of all records
forgotten so far, under the relation of the history's recipe, and counts the noise that was added.
Published ways are counted by their own papers' bounds.
"""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

import torch

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee, RenyiGuarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.published import chien, full_batch, neel
from app.accounting.terms import Neighbours
from app.domain.errors import CalibrationError, ParameterError
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from app.planning.mechanisms.tracked_release import TrackedRelease, missing_noise
from benchmarks import harness
from benchmarks.calibration import calibrate, fewest, noise_std_of
from benchmarks.convex import Case, Lineage, Plan
from workers.mechanisms.descent import Descent

PAPER_NOISE_SCALE: Final = 0.03  # Chien et al. 2024, N.5
RADIUS: Final = 100.0  # N.4
PAPER_BATCH: Final = 128


@dataclass(frozen=True)
class Target:
    """What every request must reach."""

    epsilon: float
    delta: float


Planner = Callable[[Case, History, tuple[int, ...], Target], Plan]
"""From the history after a request, and the steps of all earlier requests, to what to do."""


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
        source: ``ours``, ``published`` or ``exact``.
        batch_size: b; 0 for all records.
        step_noise_std: of every step, in training too, by target and case; None for no noise.
        radius: of the ball to which weights are projected.
        longest_step: whether the step size is Delete-to-Descent's.
        simulated_every, simulated_last: every so many requests one is really run, and only among
            so many at the end; all are counted and certified.
        at_most: the most steps that are really taken for one request.
    """

    name: str
    source: str
    batch_size: int
    plan: Planner
    neighbours: Neighbours = Neighbours.ZERO_OUT
    step_noise_std: Callable[[Case, Target], float] | None = None
    radius: float | None = None
    longest_step: bool = False
    simulated_every: int = 1
    simulated_last: int | None = None
    at_most: int | None = None

    def simulates(self, request: int, requests: int) -> bool:
        """Say whether request number ``request`` of ``requests`` is really run."""
        late = self.simulated_last is None or request > requests - self.simulated_last
        return request == requests or (late and request % self.simulated_every == 0)


def tracked(noise_std: float) -> Planner:
    """Return the fewest noise-free steps, and what a release then lacks to ``noise_std`` in all.

    Nothing at all where the noise that is there covers the request.
    """

    def plan(_: Case, history: History, __: tuple[int, ...], target: Target) -> Plan:
        accountant = HistoryAccountant(history, TrackedRelease.terms)
        wanted = {"epsilon": target.epsilon, "delta": target.delta}
        if accountant.meets(**wanted):
            return Plan(steps=0, account=lambda taken: accountant.guarantee(steps=taken))
        steps = fewest(
            lambda count: accountant.meets(
                **wanted, steps=count, release_noise_std=missing_noise(history, count, noise_std)
            )
        )
        lacking = missing_noise(history, steps, noise_std)
        return Plan(
            steps=steps,
            release_noise_std=lacking,
            account=lambda taken: accountant.guarantee(steps=taken, release_noise_std=lacking),
        )

    return plan


def noisy_steps(noise_std: Callable[[Case, Target], float]) -> Planner:
    """Return the fewest noisy steps, with all noise of the lineage counted."""

    def plan(case: Case, history: History, _: tuple[int, ...], target: Target) -> Plan:
        accountant = HistoryAccountant(history, ProjectedNoisySgd.terms)
        noise = noise_std(case, target)
        steps = fewest(
            lambda count: accountant.meets(
                epsilon=target.epsilon, delta=target.delta, steps=count, noise_std=noise
            )
        )
        return Plan(steps, account=lambda taken: accountant.guarantee(steps=taken, noise_std=noise))

    return plan


def retrained(steps: int) -> Planner:
    """Return ``steps`` noise-free steps from zeros."""
    guarantee = ExactGuarantee(terms=exact.RETRAINING)
    return lambda *_: Plan(steps, account=lambda _taken: guarantee, fresh_start=True)


def papers_noise(case: Case, _: Target) -> float:
    """Return the noise of one step at the paper's sigma, 0.03."""
    return step_noise_std(case, PAPER_NOISE_SCALE)


def step_noise_std(case: Case, noise_scale: float) -> float:
    """Return sqrt(2 eta) sigma at the papers' step size."""
    return noise_std_of(learning_rate=case.constants["learning_rate"], noise_scale=noise_scale)


def projected_noisy_sgd_epochs(noise_scale: float) -> Planner:
    """Return the epochs that Theorem 3.11 asks for at this sigma, read as the authors' code does.

    That is the loose decay for the first request and the sharp one for all others.
    """

    def plan(case: Case, history: History, earlier: tuple[int, ...], target: Target) -> Plan:
        recipe = history.recipe
        before = [steps // recipe.batches for steps in earlier]

        def account(steps: int) -> RenyiGuarantee:
            return chien.theorem_3_11(
                **_setting(case, recipe.batch_size),
                noise_scale=noise_scale,
                epochs=[*before, steps // recipe.batches],
                sharp=bool(before),
            )

        epochs = fewest(
            lambda count: (
                count > 0
                and account(count * recipe.batches).meets(
                    epsilon=target.epsilon, delta=target.delta
                )
            )
        )
        return Plan(steps=epochs * recipe.batches, account=account)

    return plan


def projected_noisy_sgd_one_epoch(
    case: Case, history: History, earlier: tuple[int, ...], target: Target
) -> Plan:
    """Return one epoch a request, at the sigma of ``one_epoch_noise_scale``."""
    scale = one_epoch_noise_scale(case, target, history.recipe.batch_size)
    return projected_noisy_sgd_epochs(scale)(case, history, earlier, target)


@cache
def one_epoch_noise_scale(case: Case, target: Target, batch_size: int = PAPER_BATCH) -> float:
    """Return the smallest sigma with which one epoch is enough for the first request of many.

    The first, counted loosely, needs the most.
    """
    setting = _setting(case, batch_size)
    wanted = {"epsilon": target.epsilon, "delta": target.delta}
    first = calibrate(chien.theorem_3_11, **wanted, **setting, epochs=[1])
    later = calibrate(chien.theorem_3_11, **wanted, **setting, epochs=[1] * 100, sharp=True)
    return max(first, later) * (1 + 1e-9)


def langevin(case: Case, history: History, _: tuple[int, ...], target: Target) -> Plan:
    """Return the steps of Theorems P.1 and P.2, all records counted as present until now."""

    def account(steps: int) -> RenyiGuarantee:
        return full_batch.chien_theorem_p_2(
            **case.constants | {"learning_rate": history.recipe.learning_rate},
            records=case.records,
            noise_scale=PAPER_NOISE_SCALE,
            steps=steps,
            forgotten=history.forgotten(),
        )

    steps = fewest(lambda count: account(count).meets(epsilon=target.epsilon, delta=target.delta))
    return Plan(steps=steps, account=account)


def delete_to_descent(case: Case, _: History, earlier: tuple[int, ...], target: Target) -> Plan:
    """Return the fewest steps that Theorem 28 allows, and its noise for them."""
    constants = case.constants
    del constants["learning_rate"]  # the theorem's own
    setting: dict[str, Any] = constants | {
        "delta": target.delta,
        "records": case.records,
        "dimension": case.train.inputs.shape[1],
        "request": len(earlier) + 1,
    }

    def noise(steps: int) -> float | None:
        try:
            return calibrate(neel.theorem_28, epsilon=target.epsilon, steps=steps, **setting)
        except (CalibrationError, ParameterError):  # too few steps for the theorem
            return None

    steps = fewest(lambda count: count > 0 and noise(count) is not None)
    noise_std = (noise(steps) or 0.0) * (1 + 1e-9)
    return Plan(
        steps=steps,
        release_noise_std=noise_std,
        account=lambda taken: neel.theorem_28(noise_std=noise_std, steps=taken, **setting),
    )


def _setting(case: Case, batch_size: int) -> dict[str, Any]:
    return {**case.constants, "batch_size": batch_size, "records": case.records, "radius": RADIUS}


RELEASE_NOISE: Final = 0.05
SWEEP: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
_NOISE_SEEDS: Final = 1000
_NOISE_DRAWS: Final = 20
_LEAST: Final = 100  # where a logarithmic axis puts a cost of nothing
_SOURCES: Final = {"published": "--X", "ours": "-o", "exact": ":s"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one lineage cost in per-record gradients, of training and of all requests, and scored.

    Accuracies are those after each request that was really run, in order. ``lost_to_noise`` is what
    the trained weights lose to one release's noise, where it was asked.
    """

    training_gradients: int
    gradients: int
    steps: tuple[int, ...]
    trained_accuracy: float
    accuracies: tuple[float, ...]
    lost_to_noise: float | None = None


Labelled = tuple[Row, Outcome]


class Trainings:
    """The trained lineages of one case and seed; methods with the same recipe share one."""

    def __init__(self, case: Case, *, seed: int, epochs: int, full_batch_steps: int = 0) -> None:
        self._case = case
        self._seed = seed
        self._epochs = epochs
        self._full_batch_steps = full_batch_steps
        self._done: dict[tuple[Descent, int], Lineage] = {}

    def start(self, method: Method, target: Target) -> Lineage:
        """Return the method's lineage before its first request; it must not be changed."""
        batch_size = method.batch_size or self._case.records
        recipe = self._case.recipe(
            batch_size=batch_size, neighbours=method.neighbours, longest_step=method.longest_step
        )
        descent = Descent(
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            noise_std=method.step_noise_std(self._case, target) if method.step_noise_std else 0.0,
            radius=method.radius,
        )
        key = (descent, batch_size)
        if key not in self._done:
            lineage = Lineage(self._case, recipe, descent, seed=self._seed)
            epochs = self._epochs * recipe.batches
            lineage.train(epochs if method.batch_size else self._full_batch_steps)
            self._done[key] = lineage
        return self._done[key]


def answer(
    case: Case,
    method: Method,
    target: Target,
    start: Lineage,
    *,
    requests: int,
    records: int,
    seed: int,
) -> Outcome:
    """Answer ``requests`` requests for ``records`` records each, one after the other."""
    lineage = start.branch(neighbours=method.neighbours, noise_seed=_NOISE_SEEDS + seed)
    steps, accuracies = list[int](), list[float]()
    for request in range(1, requests + 1):
        lineage.forget(records)
        plan = method.plan(case, lineage.history, tuple(steps), target)
        really = method.simulates(request, requests)
        lineage.run(plan, epsilon=target.epsilon, at_most=method.at_most if really else 0)
        steps.append(plan.steps)
        if really:
            accuracies.append(lineage.accuracy())
    return Outcome(
        training_gradients=lineage.training_gradients,
        gradients=lineage.gradients,
        steps=tuple(steps),
        trained_accuracy=start.accuracy(),
        accuracies=tuple(accuracies),
    )


@dataclass(frozen=True)
class Comparison:
    """How much is run.

    Attributes:
        methods: of a case; ``tracked release`` is among them.
        requests, records: how many in a row, and how many records each names.
        full_batch_steps: of training on all records at once.
        sweep: release noises of it at epsilon 1.
    """

    methods: Callable[[Case], list[Method]]
    epsilons: tuple[float, ...]
    epochs: int
    requests: int = 100
    records: int = 1
    full_batch_steps: int = 0
    sweep: tuple[float, ...] = SWEEP

    def tables(self, case: Case, seed: int) -> dict[str, list[Labelled]]:
        """Return every row of one seed; exact rows are run once, whatever the target."""
        trainings = Trainings(
            case, seed=seed, epochs=self.epochs, full_batch_steps=self.full_batch_steps
        )
        return {
            "rows": list(self._rows(case, trainings, seed)),
            "release_noise": list(self._release_noise(case, trainings, seed)),
        }

    def _answer(
        self, case: Case, method: Method, epsilon: float, trainings: Trainings, seed: int
    ) -> Outcome:
        target = Target(epsilon, case.delta)
        start = trainings.start(method, target)
        many = {"requests": self.requests, "records": self.records, "seed": seed}
        return answer(case, method, target, start, **many)

    def _rows(self, case: Case, trainings: Trainings, seed: int) -> Iterator[Labelled]:
        for method in self.methods(case):
            exact = method.source == "exact"
            relation = "any_start" if exact else Neighbours(method.neighbours)
            described = {
                "method": method.name,
                "source": method.source,
                "neighbours": relation,
                "batch_size": method.batch_size or "all",
            }
            for epsilon in self.epsilons[:1] if exact else self.epsilons:
                outcome = self._answer(case, method, epsilon, trainings, seed)
                for reached in self.epsilons if exact else (epsilon,):
                    yield described | {"epsilon": reached}, outcome

    def _release_noise(self, case: Case, trainings: Trainings, seed: int) -> Iterator[Labelled]:
        method = next(each for each in self.methods(case) if each.name == "tracked release")
        start = trainings.start(method, Target(1.0, case.delta))
        for noise_std in self.sweep:
            variant = replace(method, plan=tracked(noise_std))
            outcome = self._answer(case, variant, 1.0, trainings, seed)
            lost = start.lost_to_noise(noise_std, draws=_NOISE_DRAWS)
            yield {"release_noise_std": noise_std}, replace(outcome, lost_to_noise=lost)


def of_all_seeds(
    one_seed: Callable[[int, Comparison], list[dict[str, Any]]],
    comparison: Comparison,
    given: Namespace,
) -> list[dict[str, Any]]:
    """Return every case with its tables, combined over ``--seeds``."""
    job = partial(one_seed, comparison=replace(comparison, requests=given.requests))
    with ProcessPoolExecutor(
        given.processes, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        seeds = list(pool.map(job, range(given.seeds)))
    return [
        same[0]
        | {name: combined([each[name] for each in same]) for name in ("rows", "release_noise")}
        for same in zip(*seeds, strict=True)
    ]


def combined(seeds: Sequence[list[Labelled]]) -> list[Row]:
    """Return the rows of several seeds as one table."""
    return [
        same[0][0] | _summary([outcome for _, outcome in same]) for same in zip(*seeds, strict=True)
    ]


def _summary(rows: Sequence[Outcome]) -> Row:
    """Return the figures of one row: means over seeds, with their standard deviations."""
    figures = {
        "training_gradients": [row.training_gradients for row in rows],
        "gradients": [row.gradients for row in rows],
        "steps_per_request": [mean(row.steps) for row in rows],
        "most_steps": [max(row.steps) for row in rows],
        "trained_accuracy": [row.trained_accuracy for row in rows],
        "final_accuracy": [row.accuracies[-1] for row in rows],
        "mean_accuracy": [mean(row.accuracies) for row in rows],
    }
    table: Row = {name: mean(values) for name, values in figures.items()}
    for name in ("gradients", "final_accuracy", "mean_accuracy"):
        table[f"{name}_std"] = stdev(figures[name]) if len(rows) > 1 else 0.0
    lost = [row.lost_to_noise for row in rows if row.lost_to_noise is not None]
    return table | ({"lost_to_noise": mean(lost)} if lost else {}) | {"seeds": len(rows)}


def table(document: dict[str, Any]) -> str:
    """Return what each method costs and scores at epsilon 1."""
    cases = document.get("cases", [document])
    rows = (
        (
            *((case["case"],) if "case" in case else ()),
            f"{row['method']}{' as published' if row['source'] == 'published' else ''}",
            row["neighbours"].replace("_", " "),
            f"{row['gradients']:,.0f}",
            f"{row['final_accuracy']:.1%}",
        )
        for case in cases
        for row in case["rows"]
        if row["epsilon"] == 1.0
    )
    columns = "method | relation | gradients | accuracy"
    return harness.table(f"case | {columns}" if "cases" in document else columns, rows)


def figure(document: dict[str, Any], path: Path) -> Path:
    """Draw of each case, in a row, cost against epsilon, accuracy against cost, release noise."""
    cases = document.get("cases", [document])
    size = (19, 5.5 * len(cases) + 2)
    with harness.picture(path, size, len(cases), 3, bottom=1.5 / size[1]) as (picture, axes):
        for line, case in zip(axes, cases, strict=True):
            _costs(line[0], line[1], case["rows"])
            _noise_curve(line[2], case["release_noise"])
            name = case.get("case", document["data"])
            line[0].set_title(f"{name}, n = {case['records']}, λ = {case['weight_decay']:g}")
            line[1].set_title("accuracy against cost at ε = 1")
            line[2].set_title("tracked release at ε = 1: what its noise costs")
        each = document.get("records_per_request", 1)
        picture.suptitle(
            f"{document['requests']} requests in a row, records in each: {each}, {document['data']}"
        )
        handles, labels = axes[0][0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="lower center", ncols=4, fontsize=9)
    return path


def _costs(cost: Any, score: Any, rows: Iterable[Row]) -> None:
    def key(row: Row) -> tuple[str, ...]:
        return row["source"], row["method"], row["neighbours"]

    colours: dict[str, str] = {}
    for (source, method, relation), group in groupby(rows, key):
        shown = [row | {"gradients": max(_LEAST, row["gradients"])} for row in group]
        name = f"{method}, {relation.replace('_', ' ')} ({source})"
        how: dict[str, Any] = {
            "color": colours.setdefault(method, f"C{len(colours) % 10}"),
            "markerfacecolor": "white" if relation == "replacement" else None,
        }
        harness.plot(cost, shown, "epsilon", "gradients", _SOURCES[source], label=name, **how)
        at_one = [row for row in shown if row["epsilon"] == 1.0]
        marker = _SOURCES[source][-1]
        harness.plot(
            score, at_one, "gradients", "mean_accuracy", marker, error="mean_accuracy_std", **how
        )
    cost.set(xscale="log", yscale="log", xlabel="ε at δ = 1/n", ylabel="gradients, all requests")
    score.set(xscale="log", xlabel="gradients, all requests")
    score.set(ylabel="mean test accuracy after a request")


def _noise_curve(axis: Any, rows: Sequence[Row]) -> None:
    """Draw what requests in a row score, and what one release alone would."""
    noise = "release_noise_std"
    alone = [row | {"alone": row["trained_accuracy"] - row["lost_to_noise"]} for row in rows]
    harness.plot(
        axis,
        rows,
        noise,
        "mean_accuracy",
        "-oC3",
        error="mean_accuracy_std",
        label="mean over requests",
    )
    harness.plot(axis, alone, noise, "alone", "-vC7", label="one release of the trained head")
    trained = rows[0]["trained_accuracy"]
    axis.axhline(trained, color="C7", linestyle=":", label="the trained head, no noise")
    axis.set(xscale="log", xlabel="release noise per coordinate", ylabel="mean test accuracy")
    axis.legend(fontsize=9, loc="lower left")


OPTIONS: Final = {
    "--seeds": {"type": int, "default": 3},
    "--processes": {"type": int, "default": 2},
    "--requests": {"type": int, "default": 100},
}
SHOWN: Final[dict[str, Any]] = {"options": OPTIONS, "table": table, "figure": figure}

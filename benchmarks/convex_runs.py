"""One lineage's requests, run and measured: what both convex benchmarks share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, Final

from app.accounting.terms import Neighbours
from benchmarks.convex_case import Case
from benchmarks.convex_lineage import Lineage
from benchmarks.convex_methods import Method, Target, tracked
from workers.mechanisms.descent import Descent

_NOISE_SEEDS: Final = 1000
_NOISE_DRAWS: Final = 20


@dataclass(frozen=True)
class Outcome:
    """What one lineage cost and scored.

    Attributes:
        training_gradients: per-record gradients before the first request.
        gradients: per-record gradients of all requests.
        steps: of each request.
        trained_accuracy: before the first request.
        accuracies: after each request that was really run, in order.
        lost_to_noise: what the trained weights lose to one release's noise, where it was asked.
    """

    training_gradients: int
    gradients: int
    steps: tuple[int, ...]
    trained_accuracy: float
    accuracies: tuple[float, ...]
    lost_to_noise: float | None = None


class Trainings:
    """The trained lineages of one case and seed; methods with the same recipe share one.

    Args:
        case: data and loss.
        seed: of batches and noise.
        epochs: of training in batches.
        full_batch_steps: of training on all records at once.
    """

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
    """Answer ``requests`` requests for ``records`` records each, one after the other.

    Raises:
        TargetNotMetError: a request's steps did not meet the target.
    """
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


def noise_sweep(
    case: Case,
    method: Method,
    trainings: Trainings,
    *,
    noise_stds: Iterable[float],
    requests: int,
    records: int,
    seed: int,
) -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Yield tracked release at epsilon 1 for several release noises."""
    target = Target(epsilon=1.0, delta=case.delta)
    start = trainings.start(method, target)
    for noise_std in noise_stds:
        variant = replace(method, plan=tracked(noise_std))
        outcome = answer(
            case, variant, target, start, requests=requests, records=records, seed=seed
        )
        lost = start.lost_to_noise(noise_std, draws=_NOISE_DRAWS)
        yield {"release_noise_std": noise_std}, replace(outcome, lost_to_noise=lost)


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return the figures of one row: means over seeds, with their standard deviations."""
    rows = list(outcomes)
    figures = {
        "training_gradients": [row.training_gradients for row in rows],
        "gradients": [row.gradients for row in rows],
        "steps_per_request": [mean(row.steps) for row in rows],
        "most_steps": [max(row.steps) for row in rows],
        "trained_accuracy": [row.trained_accuracy for row in rows],
        "final_accuracy": [row.accuracies[-1] for row in rows],
        "mean_accuracy": [mean(row.accuracies) for row in rows],
    }
    table: dict[str, Any] = {name: mean(values) for name, values in figures.items()}
    for name in ("gradients", "final_accuracy", "mean_accuracy"):
        table[f"{name}_std"] = stdev(figures[name]) if len(rows) > 1 else 0.0
    lost = [row.lost_to_noise for row in rows if row.lost_to_noise is not None]
    return table | ({"lost_to_noise": mean(lost)} if lost else {}) | {"seeds": len(rows)}


def described(method: Method) -> dict[str, Any]:
    """Return what a row says of its method."""
    return {
        "method": method.name,
        "source": method.source,
        "neighbours": "any_start" if method.source == "exact" else Neighbours(method.neighbours),
        "batch_size": method.batch_size or "all",
    }


def combined(
    seeds: Sequence[list[tuple[dict[str, Any], Outcome]]],
) -> list[dict[str, Any]]:
    """Return the rows of several seeds as one table."""
    return [
        same[0][0] | summary(outcome for _, outcome in same) for same in zip(*seeds, strict=True)
    ]


def line(row: dict[str, Any]) -> str:
    """Return one row for reading."""
    return (
        f"ε {row['epsilon']:<5} {row['source']:<9} {row['method']:<40} {row['neighbours']:<11} "
        f"b {row['batch_size']!s:<5} {row['steps_per_request']:>8.1f} steps "
        f"{row['gradients']:>14,.0f} gradients  final {row['final_accuracy']:.4f} "
        f"± {row['final_accuracy_std']:.4f}  mean {row['mean_accuracy']:.4f} "
        f"± {row['mean_accuracy_std']:.4f}"
    )

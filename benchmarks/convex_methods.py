"""The ways to answer sequential requests on a linear head, ours: each with its own accountant.

Every accountant reads the lineage's ledger, so each certificate covers the union of all records
forgotten so far, under the relation of the ledger's recipe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.accounting import (
    delete_to_descent,
    gaussian,
    noisy_gd_convex,
    noisy_history,
    projected_noisy_sgd,
    retraining,
    tracked_release,
)
from app.accounting.drift import DriftLedger
from app.accounting.terms import Neighbours
from benchmarks.convex_case import Case
from benchmarks.convex_lineage import Plan

PAPER_NOISE_SCALE: Final = 0.03  # Chien et al. 2024, N.5
_MOST_STEPS: Final = 1 << 24


@dataclass(frozen=True)
class Target:
    """What every request must reach."""

    epsilon: float
    delta: float


Planner = Callable[[Case, DriftLedger, tuple[int, ...], Target], Plan]
"""From the ledger after a request, and the steps of all earlier requests, to what to do."""


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
        name: of the accountant, and what distinguishes this row.
        source: ``ours``, ``published`` or ``exact``.
        batch_size: b; 0 for all records.
        plan: what a request costs.
        neighbours: the relation it certifies.
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
    """Return the fewest noise-free steps after which ``noise_std`` at release is enough."""

    def plan(_: Case, ledger: DriftLedger, __: tuple[int, ...], target: Target) -> Plan:
        job = _job(ledger)
        steps = tracked_release.steps_needed(
            epsilon=target.epsilon, delta=target.delta, noise_std=noise_std, **job
        )
        return Plan(
            steps=steps,
            release_noise_std=noise_std,
            account=lambda taken: tracked_release.account(
                noise_std=noise_std, steps=taken, neighbours=ledger.recipe.neighbours, **job
            ),
        )

    return plan


def descent_to_delete(noise_std: float) -> Planner:
    """Return the same at Delete-to-Descent's step size."""

    def plan(_: Case, ledger: DriftLedger, __: tuple[int, ...], target: Target) -> Plan:
        job = _job(ledger)
        del job["learning_rate"]
        steps = delete_to_descent.steps_needed(
            epsilon=target.epsilon, delta=target.delta, noise_std=noise_std, **job
        )
        return Plan(
            steps=steps,
            release_noise_std=noise_std,
            account=lambda taken: delete_to_descent.account(
                noise_std=noise_std, steps=taken, neighbours=ledger.recipe.neighbours, **job
            ),
        )

    return plan


def noisy_steps(noise_std: Callable[[Case, Target], float]) -> Planner:
    """Return the fewest noisy steps from the drift, the noise of training left out."""

    def plan(case: Case, ledger: DriftLedger, _: tuple[int, ...], target: Target) -> Plan:
        job = _job(ledger) | {"noise_std": noise_std(case, target)}
        steps = projected_noisy_sgd.steps_needed(epsilon=target.epsilon, delta=target.delta, **job)
        return Plan(
            steps=steps,
            account=lambda taken: projected_noisy_sgd.account(
                steps=taken, neighbours=ledger.recipe.neighbours, **job
            ),
        )

    return plan


def noisy_steps_with_history(noise_std: Callable[[Case, Target], float]) -> Planner:
    """Return the fewest noisy steps, at least one, with all earlier noise counted."""

    def plan(case: Case, ledger: DriftLedger, _: tuple[int, ...], target: Target) -> Plan:
        noise = noise_std(case, target)
        steps = noisy_history.steps_needed(
            epsilon=target.epsilon, delta=target.delta, ledger=ledger.to_json(), noise_std=noise
        )
        return Plan(
            steps=steps,
            account=lambda taken: noisy_history.account(
                ledger=ledger.after_steps(taken).to_json(), noise_std=noise
            ),
        )

    return plan


def noisy_full_descent(noise_std: Callable[[Case, Target], float]) -> Planner:
    """Return the fewest full-batch noisy steps, all records counted as present until now."""

    def plan(case: Case, ledger: DriftLedger, _: tuple[int, ...], target: Target) -> Plan:
        job: dict[str, Any] = _job(ledger) | {
            "lipschitz": case.lipschitz,
            "records": case.records,
            "noise_std": noise_std(case, target),
            "training_steps": ledger.steps,
            "forgotten": ledger.forgotten(),
            "neighbours": ledger.recipe.neighbours,
        }
        del job["drift"]
        mu = gaussian.mu_of(epsilon=target.epsilon, delta=target.delta)
        steps = fewest(
            lambda count: noisy_gd_convex.account(unlearning_steps=count, **job).mu <= mu
        )
        return Plan(
            steps=steps,
            account=lambda taken: noisy_gd_convex.account(unlearning_steps=taken, **job),
        )

    return plan


def retrained(steps: int) -> Planner:
    """Return ``steps`` noise-free steps from zeros."""

    def plan(_: Case, __: DriftLedger, ___: tuple[int, ...], ____: Target) -> Plan:
        return Plan(steps=steps, fresh_start=True, account=lambda _taken: retraining.account())

    return plan


def papers_noise(case: Case, _: Target) -> float:
    """Return the noise of one step at the paper's sigma, 0.03."""
    step = 1 / (case.smoothness + case.weight_decay)
    return projected_noisy_sgd.noise_std_of(learning_rate=step, noise_scale=PAPER_NOISE_SCALE)


def fewest(enough: Callable[[int], bool]) -> int:
    """Return the smallest count that is enough, where more are always enough too.

    Raises:
        RuntimeError: none below sixteen million is.
    """
    if enough(0):
        return 0
    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            raise RuntimeError("no reasonable number of steps is enough")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _job(ledger: DriftLedger) -> dict[str, Any]:
    recipe = ledger.recipe
    return {
        "drift": ledger.drift(),
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "smoothness": recipe.smoothness,
    }

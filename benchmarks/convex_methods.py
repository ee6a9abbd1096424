"""The ways to answer sequential requests on a linear head, ours: each with its own accountant.

Every accountant reads the lineage's history, so each certificate covers the union of all records
forgotten so far, under the relation of the history's recipe, and counts the noise that was added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.terms import Neighbours
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from app.planning.mechanisms.tracked_release import TrackedRelease, missing_noise
from benchmarks.calibration import noise_std_of
from benchmarks.convex_case import Case
from benchmarks.convex_lineage import Plan

PAPER_NOISE_SCALE: Final = 0.03  # Chien et al. 2024, N.5
_MOST_STEPS: Final = 1 << 24


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
                **wanted,
                steps=count,
                release_noise_std=missing_noise(history, count, noise_std),
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
        accountant, noise = (
            HistoryAccountant(history, ProjectedNoisySgd.terms),
            noise_std(case, target),
        )
        steps = fewest(
            lambda count: accountant.meets(
                epsilon=target.epsilon, delta=target.delta, steps=count, noise_std=noise
            )
        )
        return Plan(
            steps=steps, account=lambda taken: accountant.guarantee(steps=taken, noise_std=noise)
        )

    return plan


def retrained(steps: int) -> Planner:
    """Return ``steps`` noise-free steps from zeros."""

    def plan(_: Case, __: History, ___: tuple[int, ...], ____: Target) -> Plan:
        return Plan(
            steps=steps,
            fresh_start=True,
            account=lambda _taken: ExactGuarantee(terms=exact.RETRAINING),
        )

    return plan


def papers_noise(case: Case, _: Target) -> float:
    """Return the noise of one step at the paper's sigma, 0.03."""
    step = 1 / (case.smoothness + case.weight_decay)
    return noise_std_of(learning_rate=step, noise_scale=PAPER_NOISE_SCALE)


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

"""The ways to answer sequential requests on a linear head, run and measured.

Our accountants read the lineage's history, so each certificate covers the union of all records
forgotten so far, under the relation of the history's recipe, and counts the noise that was added.
Published ways are counted by their own papers' bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from app.accounting import exact
from app.accounting.guarantees import ExactGuarantee, Guarantee, RenyiGuarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.published import chien, full_batch, neel
from app.accounting.terms import Neighbours, Terms
from app.domain.errors import CalibrationError, ParameterError
from app.planning.mechanisms.projected_noisy_sgd import ProjectedNoisySgd
from app.planning.mechanisms.tracked_release import TrackedRelease, missing_noise
from benchmarks.calibration import calibrate, fewest, noise_std_of
from benchmarks.convex import Case, Lineage, Plan
from workers.mechanisms.descent import Descent

PAPER_NOISE_SCALE: Final = 0.03  # Chien et al. 2024, N.5
RADIUS: Final = 100.0  # N.4


class Target(NamedTuple):
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
        step_noise_std: of every step, in training too.
        radius: of the ball to which weights are projected.
        longest_step: whether the step size is Delete-to-Descent's.
        simulated_last: only so many requests at the end are really run; all are counted and
            certified.
        at_most: the most steps that are really taken for one request.
    """

    source: str
    batch_size: int
    plan: Planner
    neighbours: Neighbours = Neighbours.ZERO_OUT
    step_noise_std: float = 0.0
    radius: float | None = None
    longest_step: bool = False
    simulated_last: int | None = None
    at_most: int | None = None


def tracked(noise_std: float) -> Planner:
    """Return the fewest noise-free steps, and what a release then lacks to ``noise_std`` in all."""

    def noises(history: History, steps: int) -> dict[str, float]:
        return {"release_noise_std": missing_noise(history, steps, noise_std)}

    return _fewest_steps(TrackedRelease.terms, noises)


def noisy_steps(noise_std: float) -> Planner:
    """Return the fewest noisy steps, with all noise of the lineage counted."""
    return _fewest_steps(ProjectedNoisySgd.terms, lambda *_: {"noise_std": noise_std})


def _fewest_steps(terms: Terms, noises: Callable[[History, int], dict[str, float]]) -> Planner:
    """Nothing at all is planned where the noise that is there covers the request."""

    def plan(_: Case, history: History, __: tuple[int, ...], target: Target) -> Plan:
        accountant = HistoryAccountant(history, terms)
        wanted = target._asdict()
        if accountant.meets(**wanted):
            return Plan(0, lambda taken: accountant.guarantee(steps=taken))
        steps = fewest(
            lambda count: accountant.meets(**wanted, steps=count, **noises(history, count))
        )
        noise = noises(history, steps)
        return Plan(
            steps,
            lambda taken: accountant.guarantee(steps=taken, **noise),
            noise.get("release_noise_std", 0.0),
        )

    return plan


def retrained(steps: int) -> Planner:
    """Return ``steps`` noise-free steps from zeros."""
    guarantee = ExactGuarantee(terms=exact.RETRAINING)
    return lambda *_: Plan(steps, account=lambda _taken: guarantee, fresh_start=True)


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
                **papers_setting(case, recipe.batch_size),
                noise_scale=noise_scale,
                epochs=[*before, steps // recipe.batches],
                sharp=bool(before),
            )

        return _enough(account, target, cycle=recipe.batches)

    return plan


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

    return _enough(account, target)


def _enough(account: Callable[[int], Guarantee], target: Target, cycle: int = 1) -> Plan:
    """Return the fewest cycles of steps, at least one, that meet the target."""
    count = fewest(lambda count: count > 0 and account(count * cycle).meets(**target._asdict()))
    return Plan(count * cycle, account)


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


def papers_setting(case: Case, batch_size: int) -> dict[str, Any]:
    """Return what the bounds of projected noisy SGD ask for, but for noise and epochs."""
    return {**case.constants, "batch_size": batch_size, "records": case.records, "radius": RADIUS}


RELEASE_NOISE: Final = 0.05
_NOISE_SEEDS: Final = 1000


@dataclass(frozen=True)
class Outcome:
    """What one lineage cost in per-record gradients, of training and of all requests, and scored.

    Accuracies are those after each request that was really run, in order.
    """

    training_gradients: int
    gradients: int
    steps: tuple[int, ...]
    accuracies: tuple[float, ...]


class Trainings:
    """The trained lineages of one case and seed; methods with the same recipe share one.

    Trained for so many epochs, in ``least`` steps or more and ``most`` or fewer.
    """

    def __init__(
        self, case: Case, *, seed: int, epochs: int, least: int = 0, most: int | None = None
    ) -> None:
        self.case = case
        self._seed = seed
        self._epochs = epochs
        self._least, self._most = least, most
        self._done: dict[tuple[Descent, int], Lineage] = {}

    def start(self, method: Method) -> Lineage:
        """Return the method's lineage before its first request; it must not be changed."""
        batch_size = method.batch_size or self.case.records
        recipe = self.case.recipe(
            batch_size=batch_size, neighbours=method.neighbours, longest_step=method.longest_step
        )
        descent = Descent(
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            noise_std=method.step_noise_std,
            radius=method.radius,
        )
        key = (descent, batch_size)
        if key not in self._done:
            lineage = Lineage(self.case, recipe, descent, seed=self._seed)
            steps = max(self._least, self._epochs * recipe.batches)
            lineage.train(min(steps, self._most or steps))
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
    batch_size = lineage.history.recipe.batch_size
    steps, accuracies = list[int](), list[float]()
    for request in range(1, requests + 1):
        lineage.forget(records)
        plan = method.plan(case, lineage.history, tuple(steps), target)
        last = method.simulated_last
        really = last is None or request > requests - last
        lineage.run(plan, epsilon=target.epsilon, at_most=method.at_most if really else 0)
        steps.append(plan.steps)
        if really:
            accuracies.append(lineage.evaluation().metrics["accuracy"])
    return Outcome(
        training_gradients=start.history.steps * batch_size,
        gradients=sum(steps) * batch_size,
        steps=tuple(steps),
        accuracies=tuple(accuracies),
    )

"""Quotes of the mechanisms for linear heads: here the drift is small, and forgetting is cheap.

A policy's numbers speak of the future: which noise the coming steps add, or which noise a release
is to have in all. What noise there is already stands in the lineage's history and counts as it is.
"""

import math
from collections.abc import Callable

from app.accounting import (
    delete_to_descent,
    langevin_unlearning,
    projected_noisy_sgd,
    tracked_release,
)
from app.accounting.histories.history import History, Steps
from app.accounting.histories.history_account import Outlook
from app.accounting.histories.strong_convexity import largest_learning_rate
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.errors import ParameterError, PlanError
from app.domain.policy import Policy
from app.planning.fixed import only, whole_steps
from app.planning.lineage import TrackedLineage, head_of, lineage_of
from app.planning.quote import Quote
from app.planning.shape import ModelShape

# Per coordinate of a released head. Features have norm at most 1, so this is also how far the
# noise moves one logit.
DEFAULT_RELEASE_NOISE = 0.05
MOST_STEPS = 10_000_000
_NOISY = ("noise_std", "steps", "radius")
# A top-up of less than this share of the noise hides next to nothing.
_LEAST_TOP_UP = 0.01


def quote_tracked_release(policy: Policy, shape: ModelShape) -> Quote:
    """Quote the fewest noise-free steps, often none, and the noise that a release then lacks."""
    return _released(policy, shape, tracked_release.NAME, tracked_release.TERMS, lineage_of(shape))


def quote_delete_to_descent(policy: Policy, shape: ModelShape) -> Quote:
    """Quote tracked release on the whole data at the largest step size."""
    head = head_of(shape)
    rate = largest_learning_rate(weight_decay=head.weight_decay, smoothness=head.smoothness)
    _refuse_under_auto(policy, delete_to_descent.NAME, "trains on the whole data at once")
    lineage = lineage_of(shape, full_batch=True, learning_rate=rate)
    return _released(policy, shape, delete_to_descent.NAME, delete_to_descent.TERMS, lineage)


def quote_projected_noisy_sgd(policy: Policy, shape: ModelShape) -> Quote:
    """Quote the steps that a lineage trained with noise must go on for."""
    return _noisy(policy, shape, projected_noisy_sgd.NAME, projected_noisy_sgd.TERMS)


def quote_langevin_unlearning(policy: Policy, shape: ModelShape) -> Quote:
    """Quote projected noisy SGD on the whole data at once."""
    return _noisy(
        policy, shape, langevin_unlearning.NAME, langevin_unlearning.TERMS, full_batch=True
    )


def refuse_unless_named(policy: Policy, name: str) -> None:
    """Raise ``PlanError`` under ``auto``: a lineage takes its noise from the first step."""
    _refuse_under_auto(policy, name, "needs its noise from the first step of training")


def refuse_without_noise(lineage: TrackedLineage) -> None:
    """Raise ``PlanError`` where a lineage has steps that added no noise."""
    if not lineage.is_new and not lineage.history.starts_noisy:
        raise PlanError(
            "needs noise at every step from the first of training on, and this lineage has steps "
            "without: use tracked_release or retraining"
        )


def refuse_above_budget(policy: Policy, shape: ModelShape, gradients: float) -> None:
    """Raise ``PlanError`` where a run would take more gradients than the budget allows."""
    budget = policy.budget_epochs
    if budget is not None and gradients > budget * shape.retained:
        raise PlanError(
            f"the plan takes {gradients:.0f} gradients but budget_epochs allows "
            f"{math.floor(budget * shape.retained)}"
        )


def fewest_steps(meets: Callable[[int], bool], *, least: int = 0) -> int:
    """Return the fewest steps, at least ``least``, that meet a target which more steps meet too.

    Raises:
        PlanError: ten million steps are not enough.
    """
    low, high = least - 1, least
    while not meets(high):
        if high >= MOST_STEPS:
            raise PlanError(f"more than {MOST_STEPS:,} steps are needed: raise noise_std")
        low, high = high, min(2 * high + 1, MOST_STEPS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def quote_of_run(
    policy: Policy,
    shape: ModelShape,
    mechanism: str,
    terms: Terms,
    lineage: TrackedLineage,
    *,
    steps: int,
    step_noise_std: float = 0.0,
    release_noise_std: float = 0.0,
) -> Quote:
    """Return the quote of a run of ``steps`` steps, with noise at each or at its release."""
    gradients = steps * lineage.history.recipe.batch_size
    refuse_above_budget(policy, shape, gradients)
    after = (
        lineage.trained(noise_std=step_noise_std)
        .after_steps(steps, noise_std=step_noise_std)
        .after_release(noise_std=release_noise_std)
    )
    return Quote(
        mechanism=mechanism,
        parameters={"history": after.to_json()},
        guarantee=Outlook(after, terms, adaptive=policy.adaptive).guarantee(),
        certifying_gradients=gradients,
        gradient_computations=gradients,
        noise_per_coordinate=after.noise_std(),
        settings=lineage.settings
        | {
            "steps": steps,
            "noise_std": step_noise_std,
            "release_noise_std": release_noise_std,
        },
        history=lineage.history,
    )


def _noisy(
    policy: Policy, shape: ModelShape, name: str, terms: Terms, *, full_batch: bool = False
) -> Quote:
    fixed = only(policy.parameters, *_NOISY)
    lineage = lineage_of(shape, full_batch=full_batch, radius=fixed.get("radius"))
    if lineage.is_new:
        refuse_unless_named(policy, name)
    refuse_without_noise(lineage)
    noise_std = require_positive("noise_std", fixed.get("noise_std", step_noise(lineage)))
    outlook = Outlook(lineage.trained(noise_std=noise_std), terms)
    target = {"epsilon": policy.epsilon, "delta": policy.delta}
    steps = fewest_steps(
        lambda count: outlook.meets(**target, steps=count, noise_std=noise_std),
        least=whole_steps(fixed, 0),
    )
    _refuse_more(fixed, steps)
    return quote_of_run(policy, shape, name, terms, lineage, steps=steps, step_noise_std=noise_std)


def step_noise(lineage: TrackedLineage) -> float:
    """Return the noise of one step by default: as it was, or what leaves the default release's."""
    for event in reversed(lineage.history.events):
        if isinstance(event, Steps) and event.noise_std > 0:
            return event.noise_std
    rate = lineage.history.recipe.contraction
    return DEFAULT_RELEASE_NOISE * math.sqrt(1 - rate**2)


def _released(
    policy: Policy, shape: ModelShape, name: str, terms: Terms, lineage: TrackedLineage
) -> Quote:
    """Quote steps and release noise; of the two, whichever the operator fixed decides the other."""
    fixed = only(policy.parameters, "noise_std", "steps")
    least = whole_steps(fixed, 0)
    history = lineage.trained()
    outlook = Outlook(history, terms)

    def meets(steps: int, release_noise_std: float) -> bool:
        return outlook.meets(
            epsilon=policy.epsilon,
            delta=policy.delta,
            steps=steps,
            release_noise_std=release_noise_std,
        )

    if not lineage.is_new and least == 0 and meets(0, 0.0):
        return quote_of_run(policy, shape, name, terms, lineage, steps=0)
    if "noise_std" in fixed:
        total = require_positive("noise_std", fixed["noise_std"])
    elif "steps" in fixed:
        total = _noise_for_steps(policy, terms, lineage, least)
    else:
        total = DEFAULT_RELEASE_NOISE
    steps = fewest_steps(
        lambda count: meets(count, missing_noise(history, count, total)), least=least
    )
    _refuse_more(fixed, steps)
    return quote_of_run(
        policy,
        shape,
        name,
        terms,
        lineage,
        steps=steps,
        release_noise_std=missing_noise(history, steps, total),
    )


def missing_noise(history: History, steps: int, total: float) -> float:
    """Return the noise that a release lacks for ``total`` in all, after ``steps`` more steps."""
    left = history.after_steps(steps).noise_std()
    missing = math.sqrt(max(0.0, total * total - left * left))
    return missing if missing >= _LEAST_TOP_UP * total else 0.0


def _noise_for_steps(policy: Policy, terms: Terms, lineage: TrackedLineage, steps: int) -> float:
    """Return the smallest noise with which ``steps`` steps are enough, for one record at least.

    It is 0 where the noise that is there already is enough.
    """
    history = lineage.trained()
    if history.forgotten() == 0:
        batch = (history.steps - 1) % history.recipe.batches
        history = history.after_request({batch: 1})
    outlook = Outlook(history, terms)
    if outlook.meets(epsilon=policy.epsilon, delta=policy.delta, steps=steps):
        return 0.0

    def meets(total: float) -> bool:
        try:
            return outlook.meets(
                epsilon=policy.epsilon,
                delta=policy.delta,
                steps=steps,
                release_noise_std=missing_noise(history, steps, total),
            )
        except ParameterError:  # so little noise is none that floats could add
            return False

    return smallest_noise(meets, scale=DEFAULT_RELEASE_NOISE)


def _refuse_more(fixed: dict[str, float], needed: int) -> None:
    steps = whole_steps(fixed, needed)
    if steps < needed:
        raise PlanError(f"this noise needs {needed} steps, not {steps}")


def _refuse_under_auto(policy: Policy, name: str, why: str) -> None:
    if policy.mechanism != name:
        raise PlanError(f"{why}: name it in the policy")

"""Requests that need no run: does the present release, as it was made, cover these records too?

What counts is the history up to the release, with the noise that was really added, and the request
as its last event; or for DP-SGD the group that the training's noise covers. Where that meets the
policy's target, the same weights can be certified again, for all records together
(docs/guarantees.md, section 6.1). Adaptive requests may have been chosen by looking at the present
release as well, so only mechanisms that compose releases answer them (section 9).

*Capacity* is how many more records the release covers wherever they were: bisection, with all of
them where a position tells most, in the batch that was visited last, and when that is full in the
one before. A number for the operator, who sees when the next run is due; each request is decided
from the batches of its own records.

Nothing here reads a session, and no cost grows with the number of earlier requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from app.accounting.guarantees import Guarantee
from app.accounting.histories.history import History
from app.accounting.histories.history_account import noisy_visits, placed_worst
from app.accounting.search import largest
from app.domain.errors import ExpungeError, PlanError
from app.domain.plan import TrainingKind
from app.domain.policy import AUTO, Policy
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.dp_sgd import DpSgd, largest_group, private_training
from app.planning.mechanisms.mechanism import Mechanism
from app.planning.mechanisms.tracked import Tracked
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.planning.tracking import CurrentRelease, Tracking

# A caller waits: walking so many visits takes some 20 ms.
_MOST_VISITS = 5_000
_STEPS = ("steps", "unlearning_steps")


@dataclass(frozen=True)
class Covered:
    """The present release covers the records: what a certificate of it states.

    Attributes:
        mechanism: with the parameters from which a verifier recomputes the guarantee.
        tracking: the lineage's, with the records in its history.
    """

    mechanism: Mechanism
    guarantee: Guarantee
    tracking: Tracking


@dataclass(frozen=True)
class Uncovered:
    """The request needs a run, and why."""

    reason: str


def coverage(
    present: CurrentRelease, policy: Policy, records: Mapping[int, int]
) -> Covered | Uncovered:
    """Say whether the present release meets the policy's target with ``records`` forgotten, too.

    ``records`` counts, by batch of the lineage, those that no certificate covers yet, each once;
    all of them must have been in the training of the present weights. A lineage trained with
    DP-SGD has no batches: any number will do.
    """
    try:
        mechanism = covering(present, policy, records)
        guarantee = mechanism.account()
        met = guarantee.meets(**policy.target)
        guarantee.epsilon(delta=policy.delta)  # a certificate states it
    except ExpungeError as error:
        return Uncovered(str(error))
    except (ArithmeticError, ValueError):
        return Uncovered("these numbers leave the range of floating point")
    if not met or (policy.adaptive and not guarantee.terms.adaptive):
        return Uncovered("the noise of the present release does not cover so many records")
    tracking = present.tracking
    if isinstance(mechanism, Tracked):
        tracking = replace(tracking, history=mechanism.history)
    return Covered(mechanism, guarantee, tracking)


def covering(present: CurrentRelease, policy: Policy, records: Mapping[int, int]) -> Mechanism:
    """Return the mechanism that certifies the present release with these records forgotten."""
    kind = covering_mechanism(present.tracking)
    refuse_policy(policy, kind)
    mechanism = kind.covering(present, policy, records)
    if isinstance(mechanism, Tracked) and noisy_visits(mechanism.history) > _MOST_VISITS:
        raise PlanError("the history is too long to be accounted for at once")
    return mechanism


def may_cover(tracking: Tracking, policy: Policy) -> bool:
    """Say whether the present release can cover any later request at all."""
    try:
        refuse_policy(policy, covering_mechanism(tracking))
    except PlanError:
        return False
    return True


def refuse_policy(policy: Policy, kind: type[Mechanism]) -> None:
    """Raise ``PlanError`` where each request needs a run anyway; ``kind`` made the release."""
    if not kind.covers_later:
        raise PlanError(f"with {kind.name} each request needs a run")
    if policy.mechanism not in (AUTO, kind.name):
        raise PlanError(f"the policy names {policy.mechanism}, and the release is {kind.name}'s")
    fixed = policy.parameters if policy.mechanism == kind.name else {}
    if "capacity" not in fixed and any(fixed.get(name) for name in _STEPS):
        raise PlanError("the policy fixes how many steps a request takes")
    if policy.adaptive and not kind.carries_adaptive:
        raise PlanError(f"{kind.name} does not cover requests that adapt to releases")


def covering_mechanism(tracking: Tracking) -> type[Mechanism]:
    """Return the mechanism that may cover later requests: DP-SGD's, too, trained anew or not."""
    if tracking.training is TrainingKind.PRIVATE:
        return DpSgd
    return mechanism_named(tracking.mechanism)


@dataclass(frozen=True)
class Capacity:
    """How many more records the present release covers, and how many it covered when it was made.

    DP-SGD makes its releases by its training: ``full`` is the whole group.
    """

    left: int
    full: int


def capacity(present: CurrentRelease, policy: Policy) -> Capacity | None:
    """Return how many more records the present release covers, wherever in the training they were.

    None where each request is answered by a run: the mechanism of the release covers no later one,
    or the policy names another mechanism or the steps of each request, or has requests adapt.
    """
    kind, tracking = covering_mechanism(present.tracking), present.tracking
    try:
        refuse_policy(policy, kind)
        training = private_training(tracking) if kind is DpSgd else None
    except PlanError:
        return None
    if training is not None:
        group = largest_group(training, **policy.target)
        return Capacity(max(0, group - present.forgotten), group)
    history = tracking.history
    if history is None:
        return None
    left, full = (
        most_covered(
            kind.name, each, version=present.version, adaptive=policy.adaptive, **policy.target
        )
        for each in (history, history.as_released())
    )
    return Capacity(left, max(left, full))


def quoted_capacity(quote: Quote, policy: Policy, shape: ModelShape) -> int | None:
    """Return how many more records a quoted run's release will cover; None for no later ones."""
    mechanism = mechanism_named(quote.mechanism).of(quote.parameters)
    if isinstance(mechanism, Tracked):
        version, adaptive = shape.earlier_releases + 1, policy.adaptive
        return most_covered(
            mechanism.name, mechanism.history, version=version, adaptive=adaptive, **policy.target
        )
    if isinstance(mechanism, DpSgd):
        training = replace(mechanism, group_size=1)
        forgotten = 0 if shape.dp_training is None else shape.dp_training.forgotten
        return largest_group(training, **policy.target) - forgotten
    return None


@lru_cache(maxsize=4096)
def most_covered(
    mechanism: str,
    history: History,
    *,
    version: int,
    epsilon: float,
    delta: float,
    adaptive: bool = False,
) -> int:
    """Return how many more records at the worst position the last release of a history covers."""
    recipe, forgotten = history.recipe, history.forgotten()
    present = CurrentRelease(Tracking(mechanism, 0, history=history), version, forgotten)
    policy = Policy(epsilon=epsilon, delta=delta, adaptive=adaptive)

    def covers(records: int) -> bool:
        return isinstance(coverage(present, policy, placed_worst(history, records)), Covered)

    return largest(covers, most=recipe.batches * recipe.batch_size - forgotten)

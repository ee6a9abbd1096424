"""Capacity: how many more records the present release covers without a run, wherever they were.

Bisection over ``coverage``, with all records at the position that tells most of them: in the batch
that was visited last, whose drift nothing has contracted yet, and when that is full in the one
before. A number for the operator, who sees when the next run is due: each request is decided by
``coverage`` itself, from the batches of its own records.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from app.accounting.histories.history import History
from app.accounting.histories.history_account import placed_worst
from app.accounting.search import largest
from app.domain.errors import PlanError
from app.domain.policy import Policy
from app.planning.coverage import Covered, coverage, covering_mechanism, refuse_policy
from app.planning.mechanisms.catalogue import mechanism_named
from app.planning.mechanisms.dp_sgd import DpSgd, largest_group, private_training
from app.planning.mechanisms.tracked import Tracked
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.planning.tracking import CurrentRelease, Tracking


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

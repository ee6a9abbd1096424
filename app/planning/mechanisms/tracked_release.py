"""Tracked release: train and unlearn without noise, add noise once, at release.

    x <- x - learning_rate grad f(x; batch)   K times on the retain set (K = 0 is allowed)
    release x + N(0, noise_std^2 I)

What earlier releases left of their noise hides the drift as well, so the present release may cover
a later request without a step, and otherwise only the missing noise is added.

Guarantee: mu-GDP, by ``accounting.histories.history_account``. Assumptions: as there. The
noise-free weights are gone once the noise is added. Source: docs/guarantees.md, section 6.2.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from app.accounting.histories.history import History
from app.accounting.histories.history_account import HistoryAccountant, placed_worst, terms_of
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.errors import ParameterError, PlanError
from app.domain.policy import Policy
from app.planning.lineage import DEFAULT_RELEASE_NOISE, TrackedLineage
from app.planning.mechanisms.tracked import Tracked, fewest_steps, refuse_more
from app.planning.policy_parameters import only, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape

# A top-up of less than this share of the noise hides next to nothing.
_LEAST_TOP_UP = 0.01


@dataclass(frozen=True, kw_only=True)
class TrackedRelease(Tracked):
    """Steps without noise, and noise at the release."""

    name: ClassVar[str] = "tracked_release"
    terms: ClassVar[Terms] = terms_of(
        "drift: Chien et al. 2024, Lemma 3.3; Bok, Su & Altschuler 2024 for the trade-off function"
    )

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the fewest steps, often none, and the noise that a release then lacks.

        Of steps and noise, the operator may fix one, which decides the other. ``capacity`` decides
        the noise, too: the release then covers so many more records, wherever they were in the
        training, and may have noise that the request itself does not need.
        """
        lineage = cls.lineage(shape)
        fixed = only(policy.parameters, "noise_std", "steps", "capacity")
        if {"noise_std", "capacity"} <= fixed.keys():
            raise PlanError("capacity decides the noise: leave noise_std out")
        least = whole_steps(fixed, 0)
        history = lineage.trained()
        accountant = HistoryAccountant(history, cls.terms)
        meets = partial(accountant.meets, **policy.target)
        if "capacity" not in fixed and not lineage.is_new and least == 0 and meets():
            return cls.offer(policy, shape, lineage, accountant, steps=0)
        if "noise_std" in fixed:
            total = require_positive("noise_std", fixed["noise_std"])
        elif "capacity" in fixed:
            total = cls._noise_for_capacity(policy, lineage, least, fixed)
        elif "steps" in fixed:
            total = cls._noise_for_steps(policy, lineage, least)
        else:
            total = DEFAULT_RELEASE_NOISE
        steps = fewest_steps(
            lambda count: meets(
                steps=count, release_noise_std=missing_noise(history, count, total)
            ),
            least=least,
        )
        refuse_more(fixed, steps)
        release = missing_noise(history, steps, total)
        return cls.offer(policy, shape, lineage, accountant, steps=steps, release_noise_std=release)

    @classmethod
    def _noise_for_steps(cls, policy: Policy, lineage: TrackedLineage, steps: int) -> float:
        """Return the least noise, perhaps 0, with which ``steps`` are enough for some record."""
        history = lineage.trained()
        if history.forgotten() == 0:
            history = history.after_request(placed_worst(history, 1))
        accountant = HistoryAccountant(history, cls.terms)

        def meets(total: float) -> bool:
            noise_std = missing_noise(history, steps, total)
            return accountant.meets(**policy.target, steps=steps, release_noise_std=noise_std)

        return _smallest(meets)

    @classmethod
    def _noise_for_capacity(
        cls, policy: Policy, lineage: TrackedLineage, steps: int, fixed: Mapping[str, float]
    ) -> float:
        """Return the smallest noise of a release after ``steps`` steps that has such a capacity."""
        capacity, history = whole_steps(fixed, 0, name="capacity"), lineage.trained()
        stepped = history.after_steps(steps)
        later = placed_worst(stepped, capacity)
        if sum(later.values()) < capacity:
            raise PlanError("capacity is more than all records that the model is trained on")

        def meets(total: float) -> bool:
            released = stepped.after_release(noise_std=missing_noise(history, steps, total))
            accountant = HistoryAccountant(released.after_request(later), cls.terms)
            return accountant.meets(**policy.target)

        return _smallest(meets)


def _smallest(meets: Callable[[float], bool]) -> float:
    """Return the smallest noise that is enough; 0 where the noise that is there already is."""

    def met(total: float) -> bool:
        try:
            return meets(total)
        except ParameterError:  # floats cannot add so little noise
            return False

    return 0.0 if met(0.0) else smallest_noise(met, scale=DEFAULT_RELEASE_NOISE)


def missing_noise(history: History, steps: int, total: float) -> float:
    """Return the noise that a release lacks for ``total`` in all, after ``steps`` more steps."""
    left = history.after_steps(steps).noise_std()
    missing = math.sqrt(max(0.0, total * total - left * left))
    return missing if missing >= _LEAST_TOP_UP * total else 0.0

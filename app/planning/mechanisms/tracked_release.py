"""Tracked release: train and unlearn without noise, add noise once, at release.

    x <- x - learning_rate grad f(x; batch)   K times on the retain set (K = 0 is allowed)
    release x + N(0, noise_std^2 I)

Training without noise makes both worlds deterministic given their seeds, at most D apart; K further
steps over equal data leave c^K D. What earlier releases left of their noise hides it as well, so a
release that was made already may cover a later request without a step, and where it does not, only
the noise that is missing is added.

Guarantee: mu-GDP, by ``accounting.histories.history_account``. Assumptions: as there. The
noise-free weights are gone once the noise is added: keeping them would be the secret state that
Chourasia & Shah 2023, Theorem 3.2, breaks. Source: Expunge; the drift is Chien et al. 2024, Lemma
3.3.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from app.accounting.histories.history import History
from app.accounting.histories.history_account import Outlook, terms_of
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_positive
from app.domain.errors import ParameterError
from app.domain.policy import Policy
from app.planning.fixed import only, whole_steps
from app.planning.lineage import DEFAULT_RELEASE_NOISE, TrackedLineage
from app.planning.mechanisms.tracked import Tracked, fewest_steps, refuse_more
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

        Of steps and noise, the one that the operator fixed decides the other.
        """
        lineage = cls.lineage(shape)
        fixed = only(policy.parameters, "noise_std", "steps")
        least = whole_steps(fixed, 0)
        history = lineage.trained()
        outlook = Outlook(history, cls.terms)
        meets = partial(outlook.meets, epsilon=policy.epsilon, delta=policy.delta)
        if not lineage.is_new and least == 0 and meets():
            return cls.offer(policy, shape, lineage, outlook, steps=0)
        if "noise_std" in fixed:
            total = require_positive("noise_std", fixed["noise_std"])
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
        return cls.offer(policy, shape, lineage, outlook, steps=steps, release_noise_std=release)

    @classmethod
    def _noise_for_steps(cls, policy: Policy, lineage: TrackedLineage, steps: int) -> float:
        """Return the smallest noise with which ``steps`` steps are enough, for at least one record.

        It is 0 where the noise that is there already is enough.
        """
        history = lineage.trained()
        if history.forgotten() == 0:
            batch = (history.steps - 1) % history.recipe.batches
            history = history.after_request({batch: 1})
        outlook = Outlook(history, cls.terms)
        covers = partial(outlook.meets, epsilon=policy.epsilon, delta=policy.delta, steps=steps)
        if covers():
            return 0.0

        def meets(total: float) -> bool:
            try:
                return covers(release_noise_std=missing_noise(history, steps, total))
            except ParameterError:  # so little noise is none that floats could add
                return False

        return smallest_noise(meets, scale=DEFAULT_RELEASE_NOISE)


def missing_noise(history: History, steps: int, total: float) -> float:
    """Return the noise that a release lacks for ``total`` in all, after ``steps`` more steps."""
    left = history.after_steps(steps).noise_std()
    missing = math.sqrt(max(0.0, total * total - left * left))
    return missing if missing >= _LEAST_TOP_UP * total else 0.0

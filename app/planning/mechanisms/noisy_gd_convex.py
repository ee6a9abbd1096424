"""Noisy gradient descent with deletion privacy, convex losses (Chourasia & Shah 2023, section 5.1).

    x <- x - learning_rate grad L_D(x) + N(0, noise_std^2 I)      full batch of all records

All of the training is noisy as well, so its noise counts. Requests may depend on earlier releases:
each of them was itself private for the records present in it, so mu^2 is the sum of those releases'
mu^2, and further steps do not lower it.

Guarantee: mu-GDP. Assumptions: as ``history_account``; both worlds start from the same weights.
Source: docs/guarantees.md, sections 7 and 9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Self

from pydantic import Field

from app.accounting.guarantees import GaussianGuarantee
from app.accounting.histories.history import MOST_EVENTS, Forget, Release, Steps
from app.accounting.histories.history_account import HistoryAccountant, terms_of
from app.accounting.search import smallest_noise
from app.accounting.terms import Terms
from app.domain.checks import require_count, require_positive
from app.domain.errors import ParameterError, PlanError
from app.domain.policy import Policy
from app.planning.lineage import DEFAULT_RELEASE_NOISE, TrackedLineage
from app.planning.mechanisms.mechanism import Claim
from app.planning.mechanisms.tracked import Tracked, fewest_steps
from app.planning.policy_parameters import only, refuse_unless_named, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.planning.tracking import CurrentRelease

_FORGOTTEN_SHARE = 0.01
_RELEASES = 10
_MOST_RELEASES = 5000


@dataclass(frozen=True, kw_only=True)
class NoisyGdConvex(Tracked):
    """Noisy descent on the whole data, which also protects the records still present.

    Attributes:
        earlier_releases: how many versions were released before this one, where requests may depend
            on them; None is for requests that were fixed in advance.
    """

    name: ClassVar[str] = "noisy_gd_convex"
    terms: ClassVar[Terms] = terms_of(
        "Chourasia & Shah 2023, section 5.1, by shifted interpolation (Bok, Su & Altschuler 2024)"
    )
    optional: ClassVar[frozenset[str]] = frozenset({"earlier_releases"})
    carries_adaptive: ClassVar[bool] = True
    full_batch: ClassVar[bool] = True

    earlier_releases: Annotated[int, Field(ge=0, le=MOST_EVENTS)] | None = None

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote the steps with which the noise of the whole history is enough.

        A new lineage takes the noise that forgets ``forgotten`` records (by default one in a
        hundred) in ``unlearning_steps`` steps: by default as many as training has; where requests
        adapt none, after ``earlier_releases`` releases (by default 10). Later runs take the fewest
        steps with which the noise of the whole history is enough.
        """
        fixed = only(
            policy.parameters, "noise_std", "unlearning_steps", "forgotten", "earlier_releases"
        )
        lineage = cls.lineage(shape)
        if lineage.is_new and not policy.adaptive:
            refuse_unless_named(policy, cls)
        lineage.refuse_without_noise()
        if policy.adaptive and lineage.history.releases != shape.earlier_releases:
            raise PlanError(
                "the model was trained again: its releases before that are not in this history, so "
                "requests must not depend on them"
            )
        noise_std = cls._noise_std(policy, fixed, shape, lineage)
        trained = lineage.trained(noise_std=noise_std)
        accountant = HistoryAccountant(trained, cls.terms, adaptive=policy.adaptive)
        meets = partial(accountant.meets, **policy.target, noise_std=noise_std)
        least = whole_steps(fixed, 0, name="unlearning_steps")
        if policy.adaptive and not meets(steps=least):  # more steps would not help
            raise PlanError(
                f"the lineage's noise cannot carry {lineage.history.forgotten()} forgotten records "
                f"over {lineage.history.releases} releases: change the policy's mechanism to "
                "exact_training, and try the request again"
            )
        steps = fewest_steps(lambda count: meets(steps=count), least=least)
        quote = cls.offer(policy, shape, lineage, accountant, steps=steps, noise_std=noise_std)
        if not policy.adaptive:
            return quote
        releases = {"earlier_releases": shape.earlier_releases}
        return replace(quote, parameters={**quote.parameters, **releases})

    @classmethod
    def covering(cls, present: CurrentRelease, policy: Policy, records: Mapping[int, int]) -> Self:
        """Return the history with the records forgotten after the release.

        Where requests adapt, they may have been chosen by the present release as well, so it
        composes with those before it, and all of them must be in the history.
        """
        covered = super().covering(present, policy, records)
        if not policy.adaptive:
            return covered
        if covered.history.releases != present.version:
            raise PlanError("the model was trained again: requests must not adapt to all releases")
        return replace(covered, earlier_releases=present.version - 1)

    def account(self) -> GaussianGuarantee:
        """Return what the history guarantees."""
        earlier = self.earlier_releases
        if earlier is not None:
            require_count("earlier_releases", earlier)
            if self.history.releases != earlier + 1:
                allowed = "as many as the history has before its last"
                raise ParameterError("earlier_releases", allowed)
        return super().account()

    @property
    def adaptive(self) -> bool:
        """Whether requests may depend on earlier releases."""
        return self.earlier_releases is not None

    def releases_before(self) -> int:
        """Return how many releases, made before the last request, the guarantee composes."""
        if self.earlier_releases is None:
            return 0
        return self.earlier_releases + self.history.asked_since

    def contradiction(self, claim: Claim) -> str | None:
        """Return why the history is not that of the certificate's version, or None."""
        earlier, before = self.earlier_releases, self.history.releases - 1
        if earlier is not None and not earlier == before == claim.version - 1:
            return "earlier_releases are not all releases before"
        return super().contradiction(claim)

    @classmethod
    def _noise_std(
        cls,
        policy: Policy,
        fixed: Mapping[str, float],
        shape: ModelShape,
        lineage: TrackedLineage,
    ) -> float:
        if "noise_std" in fixed:
            return require_positive("noise_std", fixed["noise_std"])
        if not lineage.is_new:
            return lineage.step_noise()
        forgotten = fixed.get("forgotten", max(1, round(shape.trained_on * _FORGOTTEN_SHARE)))
        releases = int(fixed.get("earlier_releases", _RELEASES)) if policy.adaptive else 1
        steps = whole_steps(
            fixed, 0 if policy.adaptive else lineage.training_steps, name="unlearning_steps"
        )
        if releases > _MOST_RELEASES:
            raise PlanError(f"earlier_releases must be at most {_MOST_RELEASES}")

        def meets(noise_std: float) -> bool:
            trained = lineage.trained(noise_std=noise_std).after_release()
            run = (Steps(steps, noise_std), Release()) if steps else (Release(),)
            request = Forget(((0, int(forgotten)),))
            try:
                accountant = HistoryAccountant(
                    replace(trained, events=(*trained.events, *run * (releases - 1), request)),
                    cls.terms,
                    adaptive=policy.adaptive,
                )
                return accountant.meets(**policy.target, steps=steps, noise_std=noise_std)
            except ParameterError as error:
                if error.name != "noise_std":
                    raise
                return False  # floats cannot add so little noise

        return smallest_noise(meets, scale=DEFAULT_RELEASE_NOISE)

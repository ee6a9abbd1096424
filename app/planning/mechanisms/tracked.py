"""What the mechanisms for linear heads have in common: a lineage's history, and one accountant.

The drift of a linear head is small, so forgetting is cheap. A policy's numbers speak of the future:
which noise the coming steps add, or which noise a release is to have in all. What noise there is
already stands in the lineage's history and counts as it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import PlainValidator

from app.accounting.guarantees import GaussianGuarantee, Guarantee
from app.accounting.histories.history import History, Steps
from app.accounting.histories.history_account import HistoryAccountant
from app.accounting.terms import Neighbours, Terms
from app.domain.checks import require_steps
from app.domain.errors import ParameterError, PlanError
from app.domain.plan import Plan, TrainingKind
from app.domain.policy import Policy
from app.planning.lineage import TrackedLineage, head_of, lineage_of
from app.planning.mechanisms import mechanism
from app.planning.mechanisms.mechanism import MAX_BATCHES
from app.planning.policy_parameters import refuse_above_budget, whole_steps
from app.planning.quote import Quote
from app.planning.shape import ModelShape
from app.planning.tracking import CurrentRelease, history_of_run, trained_history

MOST_STEPS = 10_000_000


def _certified(document: object) -> History:
    """Return the history of a certificate, which leaves no constant out."""
    history = History.from_json(document)
    recipe = history.recipe
    if not isinstance(document, Mapping) or document["recipe"].keys() != vars(recipe).keys():
        raise ParameterError("recipe", "complete")
    require_steps("dimension", recipe.dimension or 0)
    if recipe.neighbours is not Neighbours.ZERO_OUT:
        raise ParameterError("neighbours", Neighbours.ZERO_OUT)
    if recipe.batches > MAX_BATCHES:
        raise ParameterError("batches", f"at most {MAX_BATCHES}")
    return history


@dataclass(frozen=True, kw_only=True)
class Tracked(mechanism.Descending):
    """A mechanism that accounts for all that happened to a linear head since its training began.

    Attributes:
        full_batch: whether each step takes the whole data at once.
    """

    needs: ClassVar[mechanism.Needs] = mechanism.Needs.LINEAR_HEAD
    counts_from_training: ClassVar[bool] = True
    covers_later: ClassVar[bool] = True
    terms: ClassVar[Terms]
    full_batch: ClassVar[bool] = False

    history: Annotated[History, PlainValidator(_certified)]

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """Return the mechanism with parameters by name, the history as plain JSON values."""
        if "history" not in parameters:
            return super().of(parameters)
        return super().of({**parameters, "history": History.from_json(parameters["history"])})

    def parameters(self) -> dict[str, Any]:
        """Return the parameters by name, the history as plain JSON values."""
        return super().parameters() | {"history": self.history.to_json()}

    def account(self) -> GaussianGuarantee:
        """Return what the history guarantees."""
        return HistoryAccountant(self.history, self.terms, adaptive=self.adaptive).guarantee()

    @property
    def adaptive(self) -> bool:
        """Whether requests may depend on earlier releases."""
        return False

    def account_by_step(self, plan: Plan) -> mechanism.AccountOf:
        """Return the accountant of a run's steps, which walks the history before them once."""
        accountant = HistoryAccountant(trained_history(plan), self.terms, adaptive=self.adaptive)
        settings = plan.settings

        def account(taken: int) -> Guarantee | None:
            last = taken == int(settings["steps"])
            try:
                return accountant.guarantee(
                    steps=taken,
                    noise_std=settings["noise_std"],
                    release_noise_std=settings["release_noise_std"] if last else 0.0,
                )
            except ParameterError:  # no noise was added yet
                return None

        return account

    @classmethod
    def covering(cls, present: CurrentRelease, policy: Policy, records: Mapping[int, int]) -> Self:  # noqa: ARG003
        """Return the history with the records forgotten after the release, which read them."""
        history = present.tracking.history
        if history is None or not history.is_released:
            raise PlanError("the lineage has no released history")
        if history.forgotten() != present.forgotten:
            raise PlanError("the history does not forget what the newest certificate covers")
        return cls(history=history.after_request(records))

    def taken(self, plan: Plan, steps: int) -> Self:
        """Return the history of a run that took ``steps`` steps behind its training, if any."""
        return replace(self, history=history_of_run(plan, steps=steps))

    def counted(self) -> int | None:
        """Return how many weights the head has; None in real arithmetic."""
        return self.history.recipe.dimension

    def draws(self, *, first: bool) -> list[mechanism.Draws]:  # noqa: ARG002
        """Return the noise of the last run's steps and of its release."""
        dimension = mechanism.dimension_of(self)
        drawn = [
            mechanism.Draws(
                event.noise_std, dimension * (event.count if isinstance(event, Steps) else 1)
            )
            for event in self.history.last_run
        ]
        return [draws for draws in drawn if draws.noise_std > 0]

    def goes_on_from(self, older: mechanism.Mechanism) -> bool:
        """Return whether the history begins with the older one's, if that is tracked."""
        return not isinstance(older, Tracked) or self.history.begins_with(older.history)

    def contradiction(self, claim: mechanism.Claim) -> str | None:
        """Return why the history is not that of the certificate's version, or None."""
        history, releases = self.history, self.history.releases
        anew = claim.trained_again
        found = {
            "its history has no final release": not history.is_released,
            "a history of more releases than versions": releases > claim.releases,
            "a new training in an old history": releases == claim.releases and anew,
            "a history of fewer releases than versions": releases < claim.releases and not anew,
            "its history forgets other records": history.forgotten() != claim.forgotten,
            "a request before the training, or within a run": not history.asked_between_runs,
        }
        return next((reason for reason, is_so in found.items() if is_so), None)

    @classmethod
    def own_learning_rate(cls, *, weight_decay: float, smoothness: float) -> float | None:  # noqa: ARG003
        """Return the only learning rate of the mechanism; None where the recipe's is taken."""
        return None

    @classmethod
    def lineage(cls, shape: ModelShape, *, radius: float | None = None) -> TrackedLineage:
        """Return the lineage that goes on or would begin, or raise ``PlanError``."""
        head = head_of(shape)
        rate = cls.own_learning_rate(weight_decay=head.weight_decay, smoothness=head.smoothness)
        return lineage_of(shape, full_batch=cls.full_batch, learning_rate=rate, radius=radius)

    @classmethod
    def offer(
        cls,
        policy: Policy,
        shape: ModelShape,
        lineage: TrackedLineage,
        accountant: HistoryAccountant,
        *,
        steps: int,
        noise_std: float = 0.0,
        release_noise_std: float = 0.0,
    ) -> Quote:
        """Return the quote of a run that takes ``steps`` steps.

        ``accountant`` is of the history at the end of the lineage's training. ``noise_std`` is that
        of each step, those of a new lineage's training included.
        """
        gradients = steps * lineage.history.recipe.batch_size
        refuse_above_budget(policy, shape, gradients)
        after = (
            lineage.trained(noise_std=noise_std)
            .after_steps(steps, noise_std=noise_std)
            .after_release(noise_std=release_noise_std)
        )
        noise = {"noise_std": noise_std, "release_noise_std": release_noise_std}
        return cls(history=after).quoted(
            accountant.guarantee(steps=steps, **noise),
            gradients,
            noise_per_coordinate=after.noise_std(),
            settings=lineage.settings | {"steps": steps} | noise,
            training=TrainingKind.DESCENT,
            history=lineage.history,
        )


def fewest_steps(meets: Callable[[int], bool], *, least: int = 0) -> int:
    """Return the fewest steps, at least ``least``, that meet a target; more meet it, too."""
    low, high = least - 1, least
    while not meets(high):
        if high >= MOST_STEPS:
            raise PlanError(f"more than {MOST_STEPS:,} steps are needed: raise noise_std")
        low, high = high, min(2 * high + 1, MOST_STEPS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def refuse_more(fixed: Mapping[str, float], needed: int) -> None:
    """Raise ``PlanError`` where a policy fixes fewer steps than are needed."""
    steps = whole_steps(fixed, needed)
    if steps < needed:
        raise PlanError(f"this noise needs {needed} steps, not {steps}")

"""DP-SGD: a training with noise; then no step at all, while its group guarantee covers requests.

A quote refuses accountings that would take long and guarantee next to nothing. The accountant
discretises the privacy loss of one step and composes that numerically, in cells so wide that it
takes about a second at most. Very wide ones tell nothing any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from app.accounting import dp_sgd, gaussian
from app.accounting.guarantees import Guarantee
from app.accounting.search import largest
from app.domain.checks import require_fraction, require_positive, require_steps
from app.domain.errors import CalibrationError, ParameterError, PlanError
from app.domain.extras import ACCOUNTING, loaded
from app.domain.plan import TrainingKind
from app.domain.policy import Policy
from app.planning.mechanisms.mechanism import (
    Claim,
    Dimension,
    Draws,
    Mechanism,
    Steps,
    Whole,
    dimension_of,
)
from app.planning.mechanisms.retraining import Retraining
from app.planning.policy_parameters import only, refuse_unless_named, whole_steps
from app.planning.quote import Quote
from app.planning.shape import DpTrainingShape, ModelShape
from app.planning.tracking import CurrentRelease, Tracking

MOST_STEPS = 1_000_000
# Nats: what a cell may add to epsilon for each step of a release that takes few.
_COARSEST = 0.25
# A cell's probability is a difference of deltas over its width; their roundings only count upwards:
# so much is added to one step's total for each cell, over the width. Where all steps together gain
# a factor of e, the composition tells little, and its range, which is what it costs, grows.
_ROUNDING_PER_CELL = 3e-17
_USUAL_NOISE = 1.0


def refuse_slow_accounting(
    *, noise_multiplier: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where an accounting that tells anything takes more than some seconds."""
    noise = require_positive("noise_multiplier", noise_multiplier)
    rate = require_fraction("sampling_rate", sampling_rate)
    steps = _checked_steps(steps)
    group = dp_sgd.require_group(group_size)
    if rate == 1:  # one Gaussian: a formula
        return
    width = _width(noise, rate, steps, group)
    _refuse_roundings(noise, rate, steps, group)
    if not width <= _COARSEST:
        raise PlanError(
            "accounting for so little noise and so many forgotten records takes too long for a "
            "quote: raise the noise or lower capacity"
        )


def refuse_slow_calibration(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int, group_size: int
) -> None:
    """Raise ``PlanError`` where the search for the noise begins with a refused accounting."""
    rate = require_fraction("sampling_rate", sampling_rate)
    group = dp_sgd.require_group(group_size)
    guess = dp_sgd.first_guess(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=rate,
        steps=_checked_steps(steps),
        group_size=group,
    )
    refuse_slow_accounting(
        noise_multiplier=guess, sampling_rate=rate, steps=steps, group_size=group
    )
    _refuse_roundings(max(guess, _USUAL_NOISE), rate, steps, group)


def _refuse_roundings(noise: float, rate: float, steps: int, group: int) -> None:
    if rate == 1:
        return
    width = _width(noise, rate, steps, group)
    cells = float(_resolutions().range_of_loss(noise, rate, group)) / width
    if steps * cells * _ROUNDING_PER_CELL > width:
        raise PlanError(
            "so many steps, each with so little chance to take a record, cannot be accounted for "
            "in floats: train in fewer steps, with larger batches"
        )


def _width(noise: float, rate: float, steps: int, group: int) -> float:
    width = _resolutions().resolution(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, group_size=group
    )
    return float(width)


def _resolutions() -> Any:  # noqa: ANN401 - a module
    return loaded("app.accounting.mixture_of_gaussians", extra=ACCOUNTING)


def _checked_steps(steps: int) -> int:
    steps = require_steps("steps", steps)
    if steps > MOST_STEPS:
        raise PlanError(
            f"accounting for more than {MOST_STEPS:,} steps of DP-SGD takes too long for a quote: "
            "train in fewer steps, with larger batches"
        )
    return steps


DEFAULT_GROUP = 10
DEFAULT_GRADIENT_CLIP = 1.0
_FIXED = ("noise_multiplier", "gradient_clip", "capacity")


@dataclass(frozen=True, kw_only=True)
class DpSgd(Mechanism):
    """See ``app.accounting.dp_sgd``."""

    name: ClassVar[str] = dp_sgd.NAME
    counts_from_training: ClassVar[bool] = True
    covers_later: ClassVar[bool] = True
    on_grid: ClassVar[bool] = False  # its grid depends on the gradient clip, not on these

    noise_multiplier: Annotated[float, Field(ge=dp_sgd.LEAST_NOISE_MULTIPLIER)]
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Steps
    group_size: Whole
    records: Whole | None = None
    dimension: Dimension | None = None

    @classmethod
    def quote(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote a new lineage's training, or no step at all while the group budget lasts."""
        refuse_unless_named(policy, cls)
        trained = shape.dp_training
        if trained is None:
            if not shape.is_new:
                raise PlanError("needs a lineage that was trained with DP-SGD from its start")
            trained = _training(policy, shape)
        if trained.noise_multiplier < dp_sgd.LEAST_NOISE_MULTIPLIER:
            raise PlanError(
                f"a noise_multiplier below {dp_sgd.LEAST_NOISE_MULTIPLIER:g} guarantees next to "
                "nothing"
            )
        chosen = cls(
            noise_multiplier=trained.noise_multiplier,
            sampling_rate=trained.sampling_rate,
            steps=trained.steps,
            group_size=max(1, trained.forgotten),
            **_floats(shape, shape.trained_on),
        )
        chosen.refuse_slow()
        guarantee = chosen.account()
        if not guarantee.meets(**policy.target):
            if shape.dp_training is None:
                raise PlanError(
                    "this noise_multiplier misses the target: raise it, or leave it out"
                )
            raise PlanError(f"the group budget is spent: {trained.forgotten} records are forgotten")
        gradients = 0.0 if shape.dp_training else _gradients(trained, shape)
        return chosen.quoted(
            guarantee,
            gradients,
            settings=_settings(policy, trained, _floats(shape, shape.trained_on)),
            training=TrainingKind.PRIVATE,
        )

    @classmethod
    def quote_run(cls, policy: Policy, shape: ModelShape) -> Quote:
        """Quote no step while the group budget lasts, then a new training with the same privacy."""
        try:
            return cls.quote(policy, shape)
        except PlanError:
            if shape.dp_training is None:
                raise
        trained = _training(policy, shape)
        gradients = _gradients(trained, shape)
        if policy.budget_epochs is not None and gradients > policy.budget_epochs * shape.retained:
            raise PlanError(
                f"the group budget is spent and a new training takes {shape.recipe_epochs:g} "
                f"epochs, but budget_epochs allows {policy.budget_epochs:g}"
            )
        return replace(
            Retraining.offer(gradients),
            settings=_settings(policy, trained, _floats(shape, shape.retained)),
            training=TrainingKind.PRIVATE,
        )

    @classmethod
    def covering(cls, present: CurrentRelease, policy: Policy, records: Mapping[int, int]) -> Self:
        """Return the training with the largest group that its noise covers, accounted for once."""
        training = private_training(present.tracking)
        group = largest_group(training, **policy.target)
        forgotten = present.forgotten + sum(records.values())
        if forgotten > group:
            raise PlanError(f"the group budget is {group} records, and {forgotten} are forgotten")
        return cls.of({**training.parameters(), "group_size": max(1, group)})

    def account(self) -> Guarantee:
        """Return what the training's noise is worth for the whole group."""
        return dp_sgd.account(**self.parameters())

    def counted(self) -> int | None:
        """Return how many weights the network has; None in real arithmetic."""
        return self.dimension

    def draws(self, *, first: bool) -> list[Draws]:
        """Return the noise of the training: later requests change no weight."""
        return [Draws(self.noise_multiplier, dimension_of(self) * self.steps)] if first else []

    def refuse_slow(self) -> None:
        """Raise ``PlanError`` where accounting would take minutes."""
        refuse_slow_accounting(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            group_size=self.group_size,
        )

    def goes_on_from(self, older: Mechanism) -> bool:
        """Return whether the training is the older one's: only its group may be another."""
        return not isinstance(older, DpSgd) or replace(older, group_size=self.group_size) == self

    def contradiction(self, claim: Claim) -> str | None:
        """Return that the group, or the training, does not hold all forgotten records, or None."""
        if self.records is not None and self.records < claim.forgotten:
            return "more records left its training than were in it"
        whole = self.group_size >= claim.forgotten
        return None if whole else "its group is not all forgotten records"


def private_training(tracking: Tracking) -> DpSgd:
    """Return how a lineage was trained, for a group of one, in floats; or raise ``PlanError``."""
    settings = tracking.settings
    if tracking.training is not TrainingKind.PRIVATE or "dimension" not in settings:
        raise PlanError("the lineage was not trained with DP-SGD")
    return DpSgd(
        noise_multiplier=settings["noise_multiplier"],
        sampling_rate=settings["sampling_rate"],
        steps=int(settings["private_steps"]),
        group_size=1,
        records=int(settings["records"]),
        dimension=int(settings["dimension"]),
    )


@lru_cache(maxsize=1024)
def largest_group(training: DpSgd, *, epsilon: float, delta: float) -> int:
    """Return the most records whose group guarantee meets a target; 0 if one alone does not.

    Groups that take long to account for do not count. Sampled, a new answer takes some four
    accountings, a second each at most; many small samples act like one Gaussian, so the search
    begins there.
    """

    def meets(group: int) -> bool:
        chosen = replace(training, group_size=group)
        try:
            chosen.refuse_slow()
            return chosen.account().meets(epsilon=epsilon, delta=delta)
        except (CalibrationError, ParameterError, PlanError):
            return False

    mu = gaussian.mu_of(epsilon=epsilon, delta=delta)
    expected = mu * training.noise_multiplier / (training.sampling_rate * sqrt(training.steps))
    return largest(meets, most=dp_sgd.LARGEST_GROUP, guess=int(min(expected, dp_sgd.LARGEST_GROUP)))


def _floats(shape: ModelShape, records: int) -> dict[str, int]:
    """Return what it takes to count floats: weights, and the records that they are trained on."""
    return {} if shape.dimension is None else {"records": records, "dimension": shape.dimension}


def _training(policy: Policy, shape: ModelShape) -> DpTrainingShape:
    fixed = only(policy.parameters, *_FIXED)
    steps = max(1, round(shape.recipe_epochs * shape.steps_per_epoch))
    rate = min(1.0, shape.batch_size / shape.retained)
    multiplier = fixed.get("noise_multiplier")
    if multiplier is None:
        group = whole_steps(fixed, DEFAULT_GROUP, name="capacity")
        if not 1 <= group <= dp_sgd.LARGEST_GROUP:
            raise PlanError(f"capacity must be 1 to {dp_sgd.LARGEST_GROUP} for {dp_sgd.NAME}")
        sizes: dict[str, Any] = {"sampling_rate": rate, "steps": steps, "group_size": group}
        refuse_slow_calibration(**policy.target, **sizes)
        multiplier = dp_sgd.calibrate(**policy.target, **sizes, **_floats(shape, shape.retained))
    return DpTrainingShape(
        noise_multiplier=multiplier, sampling_rate=rate, steps=steps, forgotten=0
    )


def _settings(
    policy: Policy, trained: DpTrainingShape, floats: Mapping[str, int]
) -> dict[str, float]:
    clip = only(policy.parameters, *_FIXED).get("gradient_clip", DEFAULT_GRADIENT_CLIP)
    return {
        "noise_multiplier": trained.noise_multiplier,
        "sampling_rate": trained.sampling_rate,
        "private_steps": trained.steps,
        "gradient_clip": require_positive("gradient_clip", clip),
        **floats,
    }


def _gradients(trained: DpTrainingShape, shape: ModelShape) -> float:
    return trained.steps * trained.sampling_rate * shape.retained

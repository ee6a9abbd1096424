"""The schema of each mechanism's parameters in a certificate.

They are the keyword arguments of the mechanism's accountant, which checks their ranges. Counts are
bounded, which also bounds a verifier's work.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from app.accounting import (
    delete_to_descent,
    dp_sgd,
    gradient_clipping,
    langevin_unlearning,
    model_clipping,
    noisy_gd_convex,
    noisy_gd_nonconvex,
    output_perturbation,
    projected_noisy_sgd,
    retraining,
    tracked_release,
)
from app.accounting.history import MOST_EVENTS, MOST_STEPS
from app.certificates.schema import Positive, Section, place
from app.domain.errors import VerificationError
from app.domain.schedules import MAX_SCHEDULE_STEPS

MAX_STEPS: Final = 10_000_000
MAX_BATCHES: Final = 1_000_000
_MAX_DIMENSION: Final = 2**40

Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Whole = Annotated[int, Field(ge=1, le=2**53)]
Dimension = Annotated[int, Field(ge=1, le=_MAX_DIMENSION)]
Schedule = float | Annotated[list[float], Field(min_length=1, max_length=MAX_SCHEDULE_STEPS)]
# Its square is a normal float64 (``app.domain.checks.require_noise``).
NoiseStd = Annotated[float, Field(ge=1e-140, le=1e140)]
NoiseStds = NoiseStd | Annotated[list[NoiseStd], Field(min_length=1, max_length=MAX_SCHEDULE_STEPS)]
NoNoise = Annotated[float, Field(ge=0, le=0)]


class GradientClipping(Section):
    """See ``app.accounting.gradient_clipping``."""

    initial_clip: Positive
    gradient_clip: Schedule
    learning_rate: Schedule
    weight_decay: Schedule
    noise_std: NoiseStds
    steps: Steps
    dimension: Dimension


class OutputPerturbation(Section):
    """See ``app.accounting.output_perturbation``."""

    initial_clip: Positive
    noise_std: NoiseStd
    dimension: Dimension


class ModelClipping(Section):
    """See ``app.accounting.model_clipping``."""

    epsilon: Positive
    initial_clip: Positive
    model_clip: Positive
    noise_std: NoiseStd
    steps: Annotated[int, Field(ge=1, le=model_clipping.MOST_STEPS)]
    initial_noise_std: NoNoise | NoiseStd
    dimension: Dimension


class DpSgd(Section):
    """See ``app.accounting.dp_sgd``."""

    noise_multiplier: Annotated[float, Field(ge=dp_sgd.LEAST_NOISE_MULTIPLIER)]
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Steps
    group_size: Whole
    records: Whole
    dimension: Dimension


class NoisyGdNonconvex(Section):
    """See ``app.accounting.noisy_gd_nonconvex``."""

    learning_rate: Positive
    weight_decay: Positive
    smoothness: Positive
    loss_bound: Positive
    noise_std: NoiseStd
    dimension: Dimension
    records: Whole
    request_size: Whole
    training_steps: Annotated[int, Field(ge=1, le=noisy_gd_nonconvex.MOST_STEPS)]
    unlearning_steps: Annotated[int, Field(ge=1, le=noisy_gd_nonconvex.MOST_STEPS)]
    earlier_steps: Annotated[int, Field(ge=0, le=noisy_gd_nonconvex.MOST_STEPS)]


class Recipe(Section):
    """The constants of every step of a tracked lineage."""

    learning_rate: Positive
    weight_decay: Positive
    smoothness: Positive
    lipschitz: Positive
    batch_size: Whole
    batches: Annotated[int, Field(ge=1, le=MAX_BATCHES)]
    neighbours: Literal["zero_out"]
    radius: Positive | None
    dimension: Dimension


class StepsEvent(Section):
    """Optimisation steps with noise of one standard deviation each; 0 for none."""

    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)]
    noise_std: NoNoise | NoiseStd


class ReleaseEvent(Section):
    """A run's release, with the standard deviation of the noise added for it."""

    release: NoNoise | NoiseStd


class ForgetEvent(Section):
    """Forgotten records, by batch number."""

    forget: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]],
        Field(min_length=1, max_length=MAX_BATCHES),
    ]


class History(Section):
    """The history of a tracked lineage."""

    recipe: Recipe
    events: Annotated[
        list[StepsEvent | ReleaseEvent | ForgetEvent], Field(min_length=1, max_length=MOST_EVENTS)
    ]

    @property
    def forgotten(self) -> int:
        """How many records were forgotten since the training began."""
        return sum(
            count
            for event in self.events
            if isinstance(event, ForgetEvent)
            for _, count in event.forget
        )

    @property
    def releases(self) -> list[int]:
        """The indices of ``events`` at which a run ended."""
        return [at for at, event in enumerate(self.events) if isinstance(event, ReleaseEvent)]

    def last_run(self) -> list[StepsEvent | ReleaseEvent]:
        """Return the steps and the release of the last run."""
        ends = self.releases
        begun = ends[-2] + 1 if len(ends) > 1 else 0
        return [event for event in self.events[begun:] if not isinstance(event, ForgetEvent)]


class Tracked(Section):
    """See ``app.accounting.history``."""

    history: History


class Adaptive(Tracked):
    """See ``app.accounting.noisy_gd_convex``."""

    earlier_releases: Annotated[int, Field(ge=0, le=MOST_EVENTS)] | None = None


class Retraining(Section):
    """No parameters."""


FORMS: Final[Mapping[str, type[Section]]] = {
    gradient_clipping.NAME: GradientClipping,
    output_perturbation.NAME: OutputPerturbation,
    model_clipping.NAME: ModelClipping,
    dp_sgd.NAME: DpSgd,
    noisy_gd_nonconvex.NAME: NoisyGdNonconvex,
    tracked_release.NAME: Tracked,
    delete_to_descent.NAME: Tracked,
    projected_noisy_sgd.NAME: Tracked,
    langevin_unlearning.NAME: Tracked,
    noisy_gd_convex.NAME: Adaptive,
    retraining.NAME: Retraining,
}


def read_parameters(mechanism: str, parameters: Mapping[str, Any]) -> Section:
    """Parse a certificate's parameters by its mechanism's schema.

    Raises:
        VerificationError: the mechanism is unknown, or they are malformed.
    """
    if mechanism not in FORMS:
        raise VerificationError("statement", "no mechanism that this version certifies")
    try:
        return FORMS[mechanism].model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = place(("mechanism", "parameters", *first["loc"]))
        raise VerificationError("statement", f"{where}: {first['msg']}") from error

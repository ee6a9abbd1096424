"""``/v1/plans``: every mechanism's quote for a policy and a model."""

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from app.api.policies import PolicyBody
from app.api.protocol.access import GuardedRoute, ModelsReader, ServicesOf
from app.api.protocol.dependencies import Left
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name
from app.domain.errors import InvalidInputError
from app.planning.quote import Declined
from app.planning.shape import ConvexShape, DpTrainingShape, EnsembleShape, ModelShape, RidgeShape
from app.registry import repository as registry
from app.registry.noise_curves import score_at
from app.registry.shapes import shape_of

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=GuardedRoute)


_PARTS: dict[str, Callable[..., object]] = {
    "convex": ConvexShape,
    "ridge": RidgeShape,
    "ensemble": EnsembleShape,
    "dp_training": DpTrainingShape,
}


class ConvexBody(Body):
    """A linear head's enforced constants; ``lipschitz`` is null for the squared loss."""

    lipschitz: float | None
    smoothness: float
    weight_decay: float
    learning_rate: float


class RidgeBody(Body):
    """A ridge head's public range of features, and what is computed from its sums."""

    feature_range: float
    classifier: Literal["ridge", "class_means", "discriminant"] = "ridge"
    target_range: float | None = None


class EnsembleBody(Body):
    """An ensemble, and how many of its members the request concerns."""

    members: int
    concerned: float = 1.0


class DpTrainingBody(Body):
    """How a model was trained with DP-SGD, and how many of its records are forgotten."""

    noise_multiplier: float
    sampling_rate: float
    steps: int
    forgotten: int


class ShapeBody(Body):
    """The shape of a hypothetical model."""

    retained: int = Field(examples=[50_000])
    batch_size: int = Field(examples=[128])
    recipe_epochs: float = Field(examples=[50.0])
    dimension: int | None = None
    earlier_releases: int = 0
    convex: ConvexBody | None = None
    ridge: RidgeBody | None = None
    rough: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Why no constant bounds the curvature of a record's loss, where none does: a "
        "kink, or random variants of records. Mechanisms that need one decline with this reason.",
        examples=["the quantile loss has a kink"],
    )
    ensemble: EnsembleBody | None = None
    dp_training: DpTrainingBody | None = None

    def to_shape(self) -> ModelShape:
        """Return the validated shape."""
        given = vars(self)
        parts = {
            name: kind(**vars(given[name]))
            for name, kind in _PARTS.items()
            if given[name] is not None
        }
        return ModelShape(**(given | parts))


class PlansBody(Body):
    """A policy, and either a model's name or a shape."""

    policy: PolicyBody = Field(default_factory=PolicyBody)
    model: Name | None = None
    shape: ShapeBody | None = None


class QuoteAnswer(Answer):
    """One mechanism's quote."""

    mechanism: str
    parameters: dict[str, Any]
    guarantee: dict[str, Any]
    certifying_gradients: float
    gradient_computations: float
    noise_per_coordinate: float
    surviving_information_bits: float | None
    held_out_metric: str | None = Field(description="Which metric the score is: its headline.")
    held_out_score: float | None = Field(
        description="The headline metric of the model's present version with the noise that the "
        "quoted release would have, as far as its evaluation has measured that; outside of the "
        "guarantee."
    )
    capacity: int | None = Field(
        description="How many more records the run's release will cover without another run, at "
        "the worst position in its training. Null where it covers no later request."
    )


class PlansAnswer(Answer):
    """All quotes, and the choice of ``auto``."""

    choice: str | None
    quotes: list[QuoteAnswer]
    declined: list[Declined]


@router.post("", **answers(404))
def quote_plans(body: PlansBody, services: ServicesOf, _: ModelsReader, left: Left) -> PlansAnswer:
    """Quote every mechanism, including retraining, with a reason for each that does not apply."""
    if (body.model is None) == (body.shape is None):
        raise InvalidInputError("give either model or shape")
    policy, head = body.policy.to_policy(), None
    if body.shape is not None:
        shape = body.shape.to_shape()
    else:
        with services.database.transaction() as session:
            model = registry.model_named(session, str(body.model))
            shape, head = shape_of(session, model), registry.head_version(session, model)
    quotes = services.planners.quotes(policy=policy, shape=shape, left=left)
    evaluation = {} if head is None else head.evaluation
    for quote in quotes["quotes"]:
        quote["held_out_metric"] = quote["held_out_score"] = None
        if "history" in quote["parameters"]:
            noise_std = quote["noise_per_coordinate"]
            score = quote["held_out_score"] = score_at(evaluation, noise_std=noise_std)
            quote["held_out_metric"] = None if score is None else evaluation["headline"]
    return PlansAnswer.model_validate(quotes)

"""``/v1/plans``: every mechanism's quote for a policy and a model."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from app.api.policies import PolicyBody
from app.api.protocol.access import GuardedRoute, ModelsReader, ServicesOf
from app.api.protocol.errors import problem_responses
from app.api.protocol.leaving import Left
from app.api.protocol.schemas import Answer, Body, Name
from app.domain.errors import InvalidInputError
from app.planning.shape import ConvexShape, DpTrainingShape, ModelShape
from app.registry import repository as registry
from app.registry.shapes import shape_of

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=GuardedRoute)


class ConvexBody(Body):
    """A linear head's enforced constants."""

    lipschitz: float
    smoothness: float
    weight_decay: float
    learning_rate: float


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
    dp_training: DpTrainingBody | None = None

    def to_shape(self) -> ModelShape:
        """Return the validated shape."""
        sizes = self.model_dump(exclude={"convex", "dp_training"})
        convex = None if self.convex is None else ConvexShape(**self.convex.model_dump())
        trained = self.dp_training
        dp_training = None if trained is None else DpTrainingShape(**trained.model_dump())
        return ModelShape(**sizes, convex=convex, dp_training=dp_training)


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


class DeclinedAnswer(Answer):
    """A mechanism that does not apply, and why."""

    mechanism: str
    reason: str


class PlansAnswer(Answer):
    """All quotes, and the choice of ``auto``."""

    choice: str | None
    quotes: list[QuoteAnswer]
    declined: list[DeclinedAnswer]


@router.post("", responses=problem_responses(404, 422))
def quote_plans(body: PlansBody, services: ServicesOf, _: ModelsReader, left: Left) -> PlansAnswer:
    """Quote every mechanism, including retraining, with a reason for each that does not apply."""
    if (body.model is None) == (body.shape is None):
        raise InvalidInputError("give either model or shape")
    policy = body.policy.to_policy()
    if body.shape is not None:
        shape = body.shape.to_shape()
    else:
        with services.database.transaction() as session:
            shape = shape_of(session, registry.model_named(session, str(body.model)))
    quotes = services.planners.quotes(policy=policy, shape=shape, left=left)
    return PlansAnswer.model_validate(quotes)

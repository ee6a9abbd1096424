"""A policy in request bodies."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from app.api.protocol.access import GuardedRoute, Left, ModelsReader, ServicesOf
from app.api.protocol.errors import answers
from app.api.protocol.schemas import Answer, Body, Name, shaped_as
from app.domain.policy import Policy
from app.ledger import repository
from app.ledger.costs import Disk, Seconds, disk_by, measured, seconds_of
from app.planning.mechanisms.catalogue import MECHANISMS
from app.planning.quote import Declined, Quote
from app.registry import repository as registry
from app.registry.forecasts import Occasion

_MOST_PARAMETERS = 50  # more than any mechanism has
_Schedules = dict[str, float | Annotated[list[float], Field(fail_fast=True)]]


@shaped_as(
    Policy,
    parameters=(
        _Schedules,
        {
            "default_factory": dict,
            "max_length": _MOST_PARAMETERS,
            "examples": [{"noise_std": [3.0, 2.0, 1.0]}],
        },
    ),
)
class PolicyBody(Body):
    """The guarantee, deadlines and cost limits of forget requests."""

    def to_policy(self) -> Policy:
        """Return the validated policy."""
        return Policy.from_json(self.model_dump())


router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=GuardedRoute)


class PlansBody(Body):
    """A policy, and a model's name."""

    policy: PolicyBody = Field(default_factory=PolicyBody)
    model: Name


@shaped_as(
    Quote,
    without=("settings", "training", "history"),
    parameters=(dict[str, Any], {}),
    guarantee=(dict[str, Any], {}),
    seconds=(
        Seconds | None,
        {
            "description": "How long the run takes, as earlier runs of its mechanism tell that "
            "trained the same architecture on the same dataset: their median, and the ends of "
            "their spread. Null where there is none."
        },
    ),
    disk=(Disk, {}),
    held_out_metric=(str | None, {"description": "Which metric the score is: its headline."}),
    held_out_score=(
        float | None,
        {
            "description": "The headline metric of the model's present version: with the noise "
            "that the quoted release would have, as far as its evaluation has measured that, or "
            "as it is where the same mechanism has made it without noise; outside of the guarantee."
        },
    ),
)
class QuoteAnswer(Answer):
    """One mechanism's quote."""


class PlansAnswer(Answer):
    """All quotes, and the choice of ``auto``."""

    choice: str | None
    quotes: list[QuoteAnswer]
    declined: list[Declined]


@router.post("", **answers(404))
def quote_plans(body: PlansBody, services: ServicesOf, _: ModelsReader, left: Left) -> PlansAnswer:
    """Quote every mechanism, including retraining, with a reason for each that does not apply."""
    with services.database.transaction() as session:
        model = registry.model_named(session, body.model)
        shape = Occasion.of(session, model).shape
        head = registry.head_version(session, model)
        made_by = None if head is None else repository.run(session, head.run_id).plan["mechanism"]
        earlier = measured(session, model)
        disk = disk_by(session, model, MECHANISMS, retained=shape.retained)
    quotes = services.planners.quotes(policy=body.policy.to_policy(), shape=shape, left=left)
    evaluation = {} if head is None else head.evaluation
    for quote in quotes["quotes"]:
        mechanism, gradients = quote["mechanism"], quote["gradient_computations"]
        quote["seconds"] = seconds_of(earlier, mechanism, gradients)
        quote["disk"] = disk[mechanism]
        noise_std, score = quote["noise_per_coordinate"], None
        if "history" in quote["parameters"]:
            score = score_at(evaluation, noise_std=noise_std)
        elif mechanism == made_by and not noise_std and "headline" in evaluation:
            score = evaluation["metrics"][evaluation["headline"]]
        quote["held_out_score"] = score
        quote["held_out_metric"] = None if score is None else evaluation["headline"]
    return PlansAnswer.model_validate(quotes)


def score_at(evaluation: Mapping[str, Any], *, noise_std: float) -> float | None:
    """Return the headline metric with noise of this standard deviation in all.

    A version's evaluation has it with more noise than it was released with, and says nothing of
    less. Between two measured points it goes straight over the logarithm of the noise. None below
    the noise of the release, above the most that was measured, and where nothing was.
    """
    curve = evaluation.get("noise_curve")
    if not curve:
        return None
    points = [(point["noise_std"], point["score"]) for point in curve]
    for (less, above), (more, below) in pairwise(points):
        if less * (1 - 1e-9) <= noise_std <= more * (1 + 1e-9):
            share = math.log(noise_std / less) / math.log(more / less)
            return float(above + min(1.0, max(0.0, share)) * (below - above))
    return None

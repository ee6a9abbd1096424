"""A policy in request bodies."""

from typing import Annotated

from pydantic import Field

from app.api.protocol.schemas import Body, shaped_as
from app.domain.policy import Policy

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

"""A policy in request bodies."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from app.api.protocol.schemas import Body, described_by
from app.domain.policy import THIRTY_DAYS_S, Policy

# Only documented here; the policy itself checks it, with its own problem type.
_ABOVE_ZERO: dict[str, JsonValue] = {"exclusiveMinimum": 0}

_MOST_PARAMETERS = 50  # more than any mechanism has


class PolicyBody(Body):
    """The guarantee, deadlines and cost limits of forget requests."""

    model_config = ConfigDict(json_schema_extra=described_by(Policy))

    epsilon: float = Field(default=1.0, json_schema_extra=_ABOVE_ZERO)
    delta: float = Field(default=1e-5, json_schema_extra={**_ABOVE_ZERO, "exclusiveMaximum": 1})
    mechanism: str = "auto"
    parameters: dict[str, float | Annotated[list[float], Field(fail_fast=True)]] = Field(
        default_factory=dict, max_length=_MOST_PARAMETERS, examples=[{"noise_std": [3.0, 2.0, 1.0]}]
    )
    adaptive: bool = False
    first_release: Literal["certify", "none", "as_trained"] = "certify"
    serving: Literal["serve_until_replaced", "withdraw_on_request"] = "serve_until_replaced"
    window_s: float = Field(default=0.0, json_schema_extra={"minimum": 0})
    deadline_s: float = Field(default=THIRTY_DAYS_S, json_schema_extra=_ABOVE_ZERO)
    budget_epochs: float | None = None
    minimum_score: float | None = None
    retrain_every_s: float | None = Field(default=None, json_schema_extra={"minimum": 60})
    retrain_after_records: int | None = Field(default=None, json_schema_extra={"minimum": 1})

    def to_policy(self) -> Policy:
        """Return the validated policy."""
        return Policy.from_json(self.model_dump())

"""A policy as it stands in request bodies."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.schemas import Body
from app.domain.policy import THIRTY_DAYS_S, Policy
from app.domain.states import FirstRelease, Serving


class PolicyBody(Body):
    """What is promised to people who ask to be forgotten."""

    epsilon: float = 1.0
    delta: float = 1e-5
    mechanism: str = "auto"
    parameters: dict[str, float | Annotated[list[float], Field(fail_fast=True)]] = Field(
        default_factory=dict, examples=[{"noise_std": [3.0, 2.0, 1.0]}]
    )
    adaptive: bool = False
    first_release: Literal["certify", "none", "as_trained"] = "certify"
    serving: Literal["serve_until_replaced", "withdraw_on_request"] = "serve_until_replaced"
    window_s: float = 0.0
    deadline_s: float = THIRTY_DAYS_S
    budget_epochs: float | None = None
    audit: bool = False

    def to_policy(self) -> Policy:
        """Return the policy, checked."""
        values = self.model_dump()
        values["first_release"] = FirstRelease(self.first_release)
        values["serving"] = Serving(self.serving)
        return Policy(**values)

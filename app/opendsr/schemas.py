"""The bodies of OpenDSR 2.0. Unknown members are ignored, as the specification demands."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from app.api.protocol.schemas import Answer, Name, OwnerId
from app.delivery.callbacks.urls import MAX_URL_LENGTH, MAX_URLS

SubjectRequestId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
    ),
]
"""A UUID of version 4, in lower case."""

_MAX_IDENTITIES = 100


class Tolerant(BaseModel):
    """A body, or part of one; may have members for other processors or versions."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Identity(Tolerant):
    """An identity of the person."""

    identity_type: str = Field(max_length=100, examples=["controller_customer_id"])
    identity_value: OwnerId = Field(examples=["person-0017"])
    identity_format: str = Field(max_length=20, json_schema_extra={"enum": ["raw"]})


class Extension(BaseModel):
    """This processor's own extension, under its domain in ``extensions``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    datasets: list[Name] = Field(default_factory=list, max_length=1000)


def _with_identities(schema: dict[str, Any]) -> None:
    schema["required"] = [*schema["required"], "subject_identities"]


class SubjectRequestBody(Tolerant):
    """A data subject request (section 7.1 of the specification).

    Where the schema is stricter than this model, the service rejects requests with its own
    messages.
    """

    model_config = ConfigDict(json_schema_extra=_with_identities)

    regulation: Literal["gdpr", "ccpa"]
    subject_request_id: SubjectRequestId = Field(examples=["a7551968-d5d6-44b2-9831-815ac9017798"])
    subject_request_type: str = Field(max_length=100, json_schema_extra={"enum": ["erasure"]})
    submitted_time: Annotated[AwareDatetime, Field(strict=False)] = Field(
        examples=["2026-01-02T15:00:00Z"]
    )
    subject_identities: list[Identity] = Field(
        default_factory=list, max_length=_MAX_IDENTITIES, json_schema_extra={"minItems": 1}
    )
    api_version: str | None = Field(
        default=None, max_length=20, json_schema_extra={"enum": ["2.0", None]}
    )
    status_callback_urls: list[
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_LENGTH)]
    ] = Field(default_factory=list, max_length=MAX_URLS)
    extensions: dict[str, Any] | None = None


class SupportedIdentity(Answer):
    """A type of identity that this processor supports."""

    identity_type: str
    identity_format: str


class Discovery(Answer):
    """This processor's capabilities (section 6.3)."""

    api_version: str
    supported_identities: list[SupportedIdentity]
    supported_subject_request_types: list[str]
    processor_certificate: str


class Created(Answer):
    """The receipt of a request (section 7.3)."""

    controller_id: str
    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str = Field(description="The request's body in Base64.")
    subject_request_id: str


class Status(Answer):
    """The status of a request (section 8.3)."""

    controller_id: str
    expected_completion_time: datetime
    subject_request_id: str
    request_status: str
    api_version: str
    results_url: str | None = Field(description="Always null: an erasure has no results.")


class Cancelled(Answer):
    """The receipt of a cancellation (section 9.2)."""

    controller_id: str
    received_time: datetime
    subject_request_id: str
    api_version: str


class ErrorDetail(Answer):
    """One error."""

    domain: str
    reason: str
    message: str


class Error(Answer):
    """The error details (section 7.6)."""

    code: int
    message: str
    errors: list[ErrorDetail]


class ErrorAnswer(Answer):
    """The error format of every endpoint here."""

    error: Error

"""The base of all bodies: strict, and unknown fields are rejected."""

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length=1, max_length=100)
]
"""A name that is valid in a path."""

OwnerId = Annotated[str, StringConstraints(min_length=1, max_length=512)]
"""A record or subject id, as its owner writes it."""

ExternalId = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]+$")]
"""A caller's own id for a request."""


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """A response body, also made from an object that has its members as attributes."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)


Item = TypeVar("Item", bound=Answer)


class Page(Answer, Generic[Item]):
    """A page of a list; ``next_cursor`` is null on the last one."""

    items: list[Item]
    next_cursor: str | None

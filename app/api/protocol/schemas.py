"""The base of all bodies: strict, and unknown fields are rejected."""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def attributes_of(described: type) -> dict[str, str]:
    """Return a text for each attribute that the ``Attributes:`` of a docstring list.

    A text that belongs to several attributes is returned for each of them.
    """
    _, _, listed = (inspect.getdoc(described) or "").partition("\nAttributes:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in listed.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
    return texts


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


def described_by(source: type) -> Callable[[dict[str, Any]], None]:
    """Return what gives the members of a body's schema the texts of the class they end up in.

    It is the ``json_schema_extra`` of the body.
    """
    texts = attributes_of(source)

    def describe(schema: dict[str, Any]) -> None:
        for name, member in schema["properties"].items():
            if name in texts:
                member.setdefault("description", texts[name].replace("``", "`"))

    return describe


class Answer(BaseModel):
    """A response body, also made from an object that has its members as attributes."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    @classmethod
    def of(cls, source: object, **others: object) -> Self:
        """Return an answer with these members, and all others from an object's attributes."""
        same = {name: getattr(source, name) for name in cls.model_fields if name not in others}
        return cls.model_validate(same | others)


Item = TypeVar("Item")


class Page(Answer, Generic[Item]):
    """A page of a list; ``next_cursor`` is null on the last one."""

    items: list[Item]
    next_cursor: str | None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Name a page after its items: ``RunPage`` has each a ``RunAnswer``."""
        return f"{params[0].__name__.removesuffix('Answer')}Page"

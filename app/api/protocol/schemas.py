"""What calls and answers consist of: strict bodies, pages of lists, and headers.

The cursor from one page to the next holds the sort values of the page's last row, so that new rows
do not shift the pages.
"""

import base64
import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_type_hints

from fastapi import Depends, Query
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    create_model,
)

from app.domain.errors import InvalidInputError

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


class Answer(BaseModel):
    """A response body, also made from an object that has its members as attributes."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    @classmethod
    def of(cls, source: object, **others: object) -> Self:
        """Return an answer with these members, and all others from an object's attributes."""
        same = {name: getattr(source, name) for name in cls.model_fields if name not in others}
        return cls.model_validate(same | others)


Model = TypeVar("Model", bound=BaseModel)


def shaped_as(
    source: type,
    *,
    without: Collection[str] = (),
    **others: tuple[Any, dict[str, Any]],
) -> Callable[[type[Model]], type[Model]]:
    """Return what gives a body or an answer the fields of a dataclass, their one schema.

    Their texts are those of its docstring. What a field's ``metadata`` says of its range is only
    documented: the dataclass checks it, with its own problem type. ``enum`` lists all values. The
    class's own fields come first.

    Args:
        source: the dataclass.
        without: its fields that are not shown.
        others: fields that are otherwise here, or only here: the type, and what ``Field`` takes.
    """
    texts, kinds = attributes_of(source), get_type_hints(source, include_extras=True)

    def shaped(model: type[Model]) -> type[Model]:
        shape: Any = {}
        for field in dataclasses.fields(source):
            name, kind, extra = field.name, kinds[field.name], dict(field.metadata)
            told = {"description": texts[name].replace("``", "`")} if name in texts else {}
            if not issubclass(model, Answer) and field.default is not dataclasses.MISSING:
                told["default"] = field.default
                if isinstance(field.default, Enum):
                    extra["enum"], told["default"] = list(type(field.default)), field.default.value
            if "enum" in extra:
                kind = Literal[tuple(map(str, extra.pop("enum")))]
            kind, here = others.get(name, (kind, {}))
            if name not in without:
                shape[name] = kind, Field(**told | {"json_schema_extra": extra or None} | here)
        shape |= {
            name: (kind, Field(**here))
            for name, (kind, here) in others.items()
            if name not in kinds
        }
        about: Any = {"__module__": model.__module__, "__doc__": model.__doc__}
        made: type[Model] = create_model(model.__name__, __base__=model, **about, **shape)
        return made

    return shaped


Item = TypeVar("Item")


class Page(Answer, Generic[Item]):
    """A page of a list; ``next_cursor`` is null on the last one."""

    items: list[Item]
    next_cursor: str | None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Name a page after its items: ``RunPage`` has each a ``RunAnswer``."""
        return f"{params[0].__name__.removesuffix('Answer')}Page"


Row = TypeVar("Row")
Position = TypeVar("Position")
Moment = tuple[AwareDatetime, str]

MAX_LIMIT = 200
DEFAULT_LIMIT = 50


@dataclass(frozen=True)
class Paging(Generic[Position]):
    """The page that a caller asked for.

    Attributes:
        after: the position that it follows; None for the first.
        limit: how many rows it may have; read one more to see whether there is another page.
    """

    order: "Order[Position]"
    after: Position | None
    limit: int

    def cut(
        self, rows: Sequence[Row], position_of: Callable[[Row], Position]
    ) -> tuple[Sequence[Row], str | None]:
        """Return the page's rows, and the cursor of the next page if there is one."""
        page = rows[: self.limit]
        more = len(rows) > self.limit
        return page, self.order.encode(position_of(page[-1])) if more else None

    def answer(
        self,
        rows: Sequence[Row],
        position_of: Callable[[Row], Position],
        answer_of: Callable[[Row], Item],
    ) -> Page[Item]:
        """Return the page of these rows, each as it is shown."""
        found, next_cursor = self.cut(rows, position_of)
        return Page(items=[answer_of(row) for row in found], next_cursor=next_cursor)


class Order(Generic[Position]):
    """By what a list is sorted; as a dependency, the page asked for."""

    def __init__(self, positions: TypeAdapter[Position]) -> None:
        self._positions = positions

    def encode(self, position: Position) -> str:
        """Return the cursor after a row."""
        return base64.urlsafe_b64encode(self._positions.dump_json(position)).decode()

    def decode(self, cursor: str | None) -> Position | None:
        """Invert ``encode``, or raise ``InvalidInputError``; None stays None."""
        if cursor is None:
            return None
        try:
            text = base64.b64decode(cursor, altchars=b"-_", validate=True)
            return self._positions.validate_json(text, strict=True)
        except ValueError as error:
            raise InvalidInputError("cursor: not one that this service gave out") from error

    async def __call__(
        self,
        cursor: Annotated[
            str | None,
            Query(
                max_length=1000,
                description="The previous page's next_cursor; omit for the first page",
            ),
        ] = None,
        limit: Annotated[
            int, Query(ge=1, le=MAX_LIMIT, description="The most items of a page")
        ] = DEFAULT_LIMIT,
    ) -> Paging[Position]:
        """Return the page that a request asks for."""
        return Paging(self, self.decode(cursor), limit)


BY_MOMENT: Order[Moment] = Order(TypeAdapter(Moment))
BY_NAME: Order[str] = Order(TypeAdapter(str))
BY_NUMBER: Order[int] = Order(TypeAdapter(Annotated[int, Field(ge=0, lt=2**31)]))
BY_INDEX: Order[int] = Order(TypeAdapter(Annotated[int, Field(ge=0, lt=2**63)]))

PageByMoment = Annotated[Paging[Moment], Depends(BY_MOMENT)]
PageByName = Annotated[Paging[str], Depends(BY_NAME)]
PageByNumber = Annotated[Paging[int], Depends(BY_NUMBER)]
PageByIndex = Annotated[Paging[int], Depends(BY_INDEX)]


_TEXT = {"type": "string"}
HEADERS: dict[str, str] = {
    "Accept-Ranges": "`bytes`: parts may be requested with Range",
    "Allow": "The methods that the path takes",
    "Content-Disposition": "The name under which to store the file",
    "Content-Range": "Which part this is, or how long the whole is",
    "ETag": "Identifies this state; send it back as If-None-Match",
    "Idempotent-Replayed": "`true` if this is the stored answer to an earlier call with this key",
    "Location": "The resource's URL",
    "Preference-Applied": "How long the service was willing to wait",
    "RateLimit": 'What is left of each limit, if calls are limited: `"minute";r=599;t=42`',
    "RateLimit-Policy": 'The limits, if calls are limited: `"minute";q=600;w=60`',
    "Repr-Digest": "SHA-256 of the whole content, RFC 9530",
    "Retry-After": "When to retry, in seconds",
    "X-OpenDSR-Processor-Domain": "The signing processor",
    "X-OpenDSR-Signature": "The processor's signature over the body, in Base64",
    "X-Request-ID": "Identifies this call in the service's log; a valid one of the caller is kept",
    "WWW-Authenticate": "How to authenticate, and the scope that is missing",
}


def described(*names: str) -> dict[str, Any]:
    """Return the OpenAPI entries of some headers."""
    return {name: {"description": HEADERS[name], "schema": _TEXT} for name in names}


def answer_headers(status: int, *names: str) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` entry that announces a route's headers."""
    return {status: {"headers": described(*names)}}

"""Pages of lists, and opaque cursors from one to the next.

A cursor holds the sort values of a page's last row, so that new rows do not shift the pages.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import AwareDatetime, Field, TypeAdapter

from app.api.protocol.schemas import Item, Page
from app.domain.errors import InvalidInputError

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

"""Opaque cursors and pages of lists.

A cursor holds the sort values of a page's last row, so that new rows do not shift the pages.
"""

import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from fastapi import Query

from app.domain.errors import InvalidInputError

Row = TypeVar("Row")
Moment = tuple[datetime, str]

MAX_LIMIT = 200
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="The most items of a page")]
Cursor = Annotated[
    str | None,
    Query(max_length=1000, description="The previous page's next_cursor; omit for the first page"),
]
DEFAULT_LIMIT = 50


def encode_cursor(moment: datetime, row_id: str) -> str:
    """Return the cursor after a row of a list ordered by time and id."""
    return _encode([moment.isoformat(), row_id])


def decode_cursor(cursor: str | None) -> Moment | None:
    """Invert ``encode_cursor``; None stays None.

    Raises:
        InvalidInputError: it was not made by ``encode_cursor``.
    """
    match _decode(cursor):
        case None:
            return None
        case [str() as moment, str() as row_id]:
            return _moment(moment), row_id
        case _:
            raise _foreign()


def encode_name(name: str) -> str:
    """Return the cursor after a row of a list ordered by name."""
    return _encode([name])


def decode_name(cursor: str | None) -> str | None:
    """Invert ``encode_name``; None stays None. Raises ``InvalidInputError``."""
    match _decode(cursor):
        case None:
            return None
        case [str() as name]:
            return name
        case _:
            raise _foreign()


def encode_number(number: int) -> str:
    """Return the cursor after a row of a list ordered by number."""
    return _encode([number])


def decode_number(cursor: str | None, *, bits: int = 31) -> int | None:
    """Invert ``encode_number``; None stays None. Raises ``InvalidInputError``.

    Args:
        cursor: the cursor from the request.
        bits: size of the numbers: 31 for an integer, 63 for a bigint.
    """
    match _decode(cursor):
        case None:
            return None
        case [int() as number] if not isinstance(number, bool) and 0 <= number < 2**bits:
            return number
        case _:
            raise _foreign()


def cut(
    rows: Sequence[Row], limit: int, cursor_of: Callable[[Row], str]
) -> tuple[Sequence[Row], str | None]:
    """Return a page of ``limit`` rows, and the cursor of the next page if there is one.

    Args:
        rows: the page's rows and, if there are more, one further row.
        limit: how many rows the page may have.
        cursor_of: returns the cursor after a row.
    """
    page = rows[:limit]
    return page, cursor_of(page[-1]) if len(rows) > limit else None


def _encode(position: list[str] | list[int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def _decode(cursor: str | None) -> object:
    if cursor is None:
        return None
    try:
        position = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        json.dumps(position, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise _foreign() from error
    if not isinstance(position, list):
        raise _foreign()
    return position


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _foreign() from error
    if moment.tzinfo is None:
        raise _foreign()
    return moment


def _foreign() -> InvalidInputError:
    return InvalidInputError("cursor: not one that this service gave out")

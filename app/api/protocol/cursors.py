"""Opaque cursors, and the pages of a list that they connect.

A cursor says where a page ended, by the values that the list is ordered by, so that new rows do not
shift the pages.
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
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many items a page may have")]
Cursor = Annotated[
    str | None,
    Query(max_length=1000, description="The next_cursor of the page before; none for the first"),
]
DEFAULT_LIMIT = 50


def encode_cursor(moment: datetime, row_id: str) -> str:
    """Return the cursor after a row of a list that is ordered by time and id."""
    return _encode([moment.isoformat(), row_id])


def decode_cursor(cursor: str | None) -> Moment | None:
    """Read what ``encode_cursor`` wrote; None stays None.

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
    """Return the cursor after a row of a list that is ordered by name."""
    return _encode([name])


def decode_name(cursor: str | None) -> str | None:
    """Read what ``encode_name`` wrote; None stays None. Raises ``InvalidInputError``."""
    match _decode(cursor):
        case None:
            return None
        case [str() as name]:
            return name
        case _:
            raise _foreign()


def encode_number(number: int) -> str:
    """Return the cursor after a row of a list that is ordered by number."""
    return _encode([number])


def decode_number(cursor: str | None, *, bits: int = 31) -> int | None:
    """Read what ``encode_number`` wrote; None stays None. Raises ``InvalidInputError``.

    Args:
        cursor: what was sent.
        bits: size of the numbers that the list is ordered by: 31 for an integer, 63 for a bigint.
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
        rows: one more than the page may have, if there are so many.
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
        json.dumps(position, ensure_ascii=False).encode()  # half a surrogate pair cannot be sent
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

"""Opaque cursors: where a page of a list ended."""

import base64
import binascii
from datetime import datetime

from app.domain.errors import InvalidInputError


def encode_cursor(moment: datetime, row_id: str) -> str:
    """Return the cursor of the last row of a page."""
    return base64.urlsafe_b64encode(f"{moment.isoformat()} {row_id}".encode()).decode()


def decode_cursor(cursor: str) -> tuple[datetime, str]:
    """Read a cursor.

    Raises:
        InvalidInputError: it was not made by ``encode_cursor``.
    """
    try:
        moment, row_id = base64.urlsafe_b64decode(cursor).decode().split(" ")
        parsed = datetime.fromisoformat(moment)
    except (ValueError, binascii.Error) as error:
        raise InvalidInputError("cursor: not one that this service gave out") from error
    if parsed.tzinfo is None:
        raise InvalidInputError("cursor: not one that this service gave out")
    return parsed, row_id

"""Conditions and ranges of HTTP requests, RFC 9110 sections 13 and 14.

Each resource has one representation with a strong entity tag and no modification date. So dates in
conditions never match, and conditions with dates only are ignored, as the standard demands.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header

from app.domain.errors import PreconditionError, RangeError

_ONE_RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", re.ASCII | re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?"[^"]*"')


IfMatch = Annotated[
    str | None,
    Header(description="The ETag of the caller's copy: 412 if the resource has changed"),
]


@dataclass(frozen=True)
class Part:
    """The bytes to send: ``start`` up to, not including, ``stop``."""

    start: int
    stop: int
    size: int

    @property
    def is_whole(self) -> bool:
        """Return whether this is the whole content."""
        return self.stop - self.start == self.size

    @property
    def content_range(self) -> str:
        """The value of ``Content-Range``."""
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


def is_not_modified(headers: Mapping[str, str], etag: str) -> bool:
    """Return whether the caller's copy is current, so that the answer is 304.

    Raises:
        PreconditionError: ``If-Match`` names another representation.
    """
    require_match(headers.get("if-match"), etag)
    if_none_match = headers.get("if-none-match")
    return if_none_match is not None and names(if_none_match, etag, weak=True)


def require_match(if_match: str | None, etag: str) -> None:
    """Raise ``PreconditionError`` if ``If-Match`` names another representation."""
    if if_match is not None and not names(if_match, etag, weak=False):
        raise PreconditionError("this is not the content that If-Match names")


def requested_part(headers: Mapping[str, str], etag: str, size: int) -> Part:
    """Return the requested part.

    Several ranges, an unknown unit, an invalid range or a range of another representation
    (``If-Range``) yield the whole content, as the standard allows.

    Raises:
        RangeError: the range begins after the end.
    """
    whole = Part(0, size, size)
    match = _ONE_RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or headers.get("if-range", etag).strip() != etag:
        return whole
    first, last = match.groups()
    if not first and not last:
        return whole
    if not first:
        start, stop = max(0, size - _number(last)), size
    else:
        start, stop = _number(first), min(size, _number(last) + 1) if last else size
        if last and _number(last) < start:
            return whole
    if start >= stop:
        raise RangeError(size)
    return Part(start, stop, size)


def _number(digits: str) -> int:
    """Parse a number; a very long one is cut, so that parsing it is cheap."""
    return int(digits.lstrip("0")[:20] or "0")


def names(header: str, etag: str, *, weak: bool) -> bool:
    """Return whether a condition names an entity tag; ``weak`` ignores ``W/``."""
    if header.strip() == "*":
        return True
    tags = _TAG.findall(header)
    return etag in ([tag.removeprefix("W/") for tag in tags] if weak else tags)

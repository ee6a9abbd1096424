"""Ids: the service's own, which are opaque, and their owners', of records, subjects and classes.

An owner's id has one spelling on every way in. A whole number is its decimal digits, whatever type
or file brought it: 5, 5.0 and +5 are one id, since programs that meet a gap in a column write 5.0
for 5. Text is in Unicode normal form C, without surrounding space, and otherwise as written: 007 is
not 7. What may have lost digits on its way is no id.

Whether a certificate's salted commitment covers an id can be checked only with both id and salt.
"""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal
from uuid import uuid4

from app.domain.errors import InvalidInputError


def new_id(prefix: str) -> str:
    """Return a fresh id such as ``run_5b0c…``; it reveals only its kind."""
    return f"{prefix}_{uuid4().hex}"


MAX_ID_LENGTH: Final = 512
EXACT_BELOW: Final = 2**53
"""From here on, float64 does not tell each whole number from the next."""
_WHOLE: Final = re.compile(r"(?:\+(?!-))?(-?(?:0|[1-9][0-9]*))(\.0*)?", re.ASCII)
_EXPONENT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][+-]?[0-9]+", re.ASCII)
OTHER_SPELLINGS: Final = rf"^(\+|-0$|-?[0-9]+\.0*$|{_EXPONENT.pattern}$)"
"""Matches each printable, trimmed text whose one spelling may be another (RE2, as Arrow has it)."""


class Notation(StrEnum):
    """How ids are written, as far as another way of writing may be meant by the same."""

    DIGITS = "whole numbers"
    POINT = "whole numbers with a decimal point"
    ZEROS = "numbers with leading zeros"


NOTATIONS: Final = {
    Notation.DIGITS: r"^[+-]?(0|[1-9][0-9]*)$",
    Notation.POINT: r"^[+-]?(0|[1-9][0-9]*)\.0*$",
    Notation.ZEROS: r"^0[0-9]+$",
}
"""What matches a trimmed text of each notation (RE2)."""


def normal_id(owners_id: str) -> str:
    """Return the spelling by which an owner's id is compared."""
    text = unicodedata.normalize("NFC", owners_id).strip()
    found = _WHOLE.fullmatch(text)
    if found is None or (found[2] is not None and _is_inexact(found[1])):
        return text
    return "0" if found[1] == "-0" else found[1]


def id_fault(owners_id: str) -> str | None:
    """Say why a text is no id; None if it is one."""
    text = owners_id.strip()
    if not text:
        return "is empty"
    if "\0" in text:
        return "has a NUL"
    if len(text) > MAX_ID_LENGTH:
        return f"must have at most {MAX_ID_LENGTH} characters"
    if _EXPONENT.fullmatch(text):
        return "a number in exponent form, whose digits are lost: write ids as whole numbers"
    found = _WHOLE.fullmatch(text)
    if found is not None and found[2] is not None and _is_inexact(found[1]):
        return "a number with a decimal point from 2^53 on, whose last digits may be lost"
    return None


def id_of(value: object) -> str:
    """Return the id that a Python value means: text, or a whole number of any type.

    Raises:
        InvalidInputError: it is neither, or a float that does not tell whole numbers apart.
    """
    if not isinstance(value, str):
        value = getattr(value, "item", lambda: value)()  # NumPy's numbers
    match value:
        case str():
            text = value
        case bool():
            raise InvalidInputError("an id must be text or a whole number, not true or false")
        case int():
            text = str(value)
        case float() if value.is_integer() and abs(value) < EXACT_BELOW:
            text = str(int(value))
        case Decimal() if value.is_finite() and value == value.to_integral_value():
            text = str(int(value))
        case _:
            raise InvalidInputError("an id must be text, or a whole number below 2^53 if a float")
    fault = id_fault(text)
    if fault is not None:
        raise InvalidInputError(f"an id {fault}")
    return normal_id(text)


def require_ids(owners_ids: Sequence[str], where: str) -> None:
    """Raise ``InvalidInputError`` that names the place of the first text that is no id."""
    for place, each in enumerate(owners_ids):
        fault = id_fault(each)
        if fault is not None:
            raise InvalidInputError(f"{where}[{place}]: {fault}")


def _is_inexact(digits: str) -> bool:
    return abs(int(digits[:20])) >= EXACT_BELOW


SALT_BYTES = 32


def commitment(
    kind: Literal["record", "subject"], owners_id: str, ordinal: int, *, salt: bytes
) -> bytes:
    """Commit to one of the records that were pushed with an id, or of a subject.

    They are counted from 0 in the order of upload.
    """
    named = f"{kind}\0{normal_id(owners_id)}\0{ordinal}"
    return hmac.digest(salt, named.encode(), "sha256")


def member_commitment(commitment: bytes, member: int) -> bytes:
    """Commit to a record, given by its own commitment, and the member that learned from it."""
    return hashlib.sha256(b"member\0" + member.to_bytes(4) + commitment).digest()

"""An id in every spelling in which bytes are usually written down, to be searched for."""

import base64
import json
from collections.abc import Iterable

LEAST_BYTES = 6
"""Shorter ids occur by chance in any store; finding one would say nothing."""


class Spellings:
    """One id as UTF-8, in JSON, quoted by PostgreSQL, in hexadecimal and in base64.

    Attributes:
        longest: length of the longest spelling, in bytes.
    """

    def __init__(self, owners_id: str) -> None:
        raw = owners_id.encode()
        quoted = owners_id.replace("\\", "\\\\").replace('"', '""')
        in_json = json.dumps(owners_id)[1:-1]
        self._spellings = {
            "as it is": {raw},
            "escaped": {quoted.encode(), in_json.encode()} - {raw},
            "in hexadecimal": {raw.hex().encode(), raw.hex().upper().encode()},
            "in base64": {_in_base64(raw, shift) for shift in range(3)},
        }
        self.is_searchable = len(raw) >= LEAST_BYTES
        self.longest = max(len(word) for words in self._spellings.values() for word in words)

    def found_in(self, content: bytes) -> str | None:
        """Return how the id is spelt in ``content``, or None."""
        for how, words in self._spellings.items():
            if any(word in content for word in words):
                return how
        return None

    def found_in_parts(self, parts: Iterable[bytes]) -> str | None:
        """Return how the id is spelt in a content that comes in parts, across their borders too."""
        before = b""
        for part in parts:
            window = before + part
            how = self.found_in(window)
            if how is not None:
                return how
            before = window[-self.longest :]
        return None


def _in_base64(raw: bytes, shift: int) -> bytes:
    """Return what every base64 text of bytes that hold ``raw`` at ``shift`` modulo 3 has in it."""
    encoded = base64.b64encode(bytes(shift) + raw)
    whole = (shift + len(raw)) * 8 // 6
    return encoded[(shift * 8 + 5) // 6 : whole]

"""An id in the encodings in which it may be stored, for searching."""

import base64
import json
import re
import unicodedata
from collections.abc import Iterable

from app.domain.owners_ids import normal_id

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
LEAST_BYTES = 6
"""Shorter ids occur by chance in any store."""


class Spellings:
    """One id as UTF-8, in JSON, quoted by PostgreSQL, in hexadecimal and in base64.

    Accented letters may be one character or two, as the sender wrote them.
    """

    def __init__(self, owners_id: str) -> None:
        forms = {unicodedata.normalize(form, owners_id) for form in ("NFC", "NFD")}
        forms |= {owners_id, normal_id(owners_id)}
        raw = {form.encode() for form in forms}
        quoted = {form.replace("\\", "\\\\").replace('"', '""').encode() for form in forms}
        in_json = {json.dumps(form)[1:-1].encode() for form in forms}
        in_hex = {each.hex() for each in raw}
        self._spellings = {
            "as it is": raw,
            "escaped": (quoted | in_json) - raw,
            "in hexadecimal": {word.encode() for each in in_hex for word in (each, each.upper())},
        }
        self._base64 = [_Base64(each, shift) for each in raw for shift in range(3)]
        self.is_searchable = min(map(len, raw)) >= LEAST_BYTES
        words = [len(word) for words in self._spellings.values() for word in words]
        self.longest = max(*words, *(word.length for word in self._base64))

    def found_in(self, content: bytes) -> str | None:
        """Return the encoding in which ``content`` contains the id, or None."""
        for how, words in self._spellings.items():
            if any(word in content for word in words):
                return how
        return "in base64" if any(word.is_in(content) for word in self._base64) else None

    def found_in_parts(self, parts: Iterable[bytes]) -> str | None:
        """Search content that comes in parts, including across their boundaries."""
        before = b""
        for part in parts:
            window = before + part
            how = self.found_in(window)
            if how is not None:
                return how
            before = window[-self.longest :]
        return None


class _Base64:
    """Matches ``raw`` in base64, at an offset of ``shift`` modulo 3.

    The characters at both ends may mix bits of the id with bits of its neighbours.
    """

    def __init__(self, raw: bytes, shift: int) -> None:
        encoded = base64.b64encode(bytes(shift) + raw).rstrip(b"=")
        start, stop = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
        self._core = encoded[start:stop]
        first_bits, last_bits = -shift * 8 % 6, (shift + len(raw)) * 8 % 6
        first = _ALPHABET.index(encoded[start - 1]) if first_bits else 0
        last = _ALPHABET.index(encoded[stop]) if last_bits else 0
        before = [c for v, c in enumerate(_ALPHABET) if (v ^ first) % (1 << first_bits) == 0]
        after = [c for v, c in enumerate(_ALPHABET) if (v ^ last) >> (6 - last_bits) == 0]
        self._pattern = re.compile(
            (_one_of(before) if first_bits else b"")
            + re.escape(self._core)
            + (_one_of(after) if last_bits else b"")
        )
        self.length = len(encoded)

    def is_in(self, content: bytes) -> bool:
        """Return whether content contains it; the core decides quickly, the pattern exactly."""
        return self._core in content and self._pattern.search(content) is not None


def _one_of(characters: list[int]) -> bytes:
    return b"[" + re.escape(bytes(characters)) + b"]"

"""Finding people by guessing: all that somebody can do who has the database and a list of ids."""

import base64
import hashlib
import hmac
import re
from collections.abc import Collection, Iterator

from app.domain.ids import commitment

_ORDINALS = range(5)
_HEX = re.compile(r"[0-9a-f]{32,}")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{22,}={0,2}")
_WORD = re.compile(r"[\w.:-]{2,80}")


def guessed(dump: str, ids: Collection[str], *, known: Collection[bytes] = ()) -> set[str]:
    """Return the ids that a database gives away.

    Every value in it is tried as a salt, as a key, and as what was hashed beside an id.

    Args:
        dump: every row as text, bytes in hex; or a dump of ``pg_dump``.
        ids: the guesses.
        known: secrets that the guesser has besides.
    """
    blobs = set(_bytes_in(dump))
    keys = {*blobs, *known, *(word.encode() for word in set(_WORD.findall(dump))), b""}
    stored = blobs | {blob[: len(blob) // 2] for blob in blobs}
    return {guess for guess in ids if any(h in stored for key in keys for h in _hashes(key, guess))}


def _bytes_in(dump: str) -> Iterator[bytes]:
    for found in _HEX.findall(dump):
        yield bytes.fromhex(found[: len(found) // 2 * 2])
    for found in _BASE64.findall(dump):
        try:
            yield base64.b64decode(found.translate(str.maketrans("-_", "+/")) + "==")
        except ValueError:
            continue


def _hashes(key: bytes, guess: str) -> Iterator[bytes]:
    raw = guess.encode()
    yield from (commitment("record", guess, n, salt=key) for n in _ORDINALS)
    yield from (commitment("subject", guess, n, salt=key) for n in _ORDINALS)
    for said in (raw, b"record\0" + key + b"\0" + raw, b"subject\0" + key + b"\0" + raw):
        yield hmac.digest(key, said, "sha256")
        yield hashlib.sha256(said).digest()
    for said in (key + raw, raw + key, key + b"\0" + raw):
        yield hashlib.sha256(said).digest()
        yield hashlib.sha1(said).digest()
        yield hashlib.md5(said).digest()

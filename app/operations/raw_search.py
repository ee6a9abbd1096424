"""Searches all rows of PostgreSQL, all of Redis and log files for an id as it is written.

The search terms stay in this process: in a query they would reach the servers' own logs and memory.
"""

import json
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis
from sqlalchemy import Engine, text

from app.domain.owners_ids import normal_id

LEAST_BYTES = 6
"""Shorter ids occur by chance in any store."""
_ROWS_AT_ONCE = 1000
_BUFFER_BYTES = 4 * 1024 * 1024
_TABLES = text("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")


class RawId:
    """One id in UTF-8, as it is, and as JSON and PostgreSQL's rows quote it.

    Accented letters may be one character or two, as the sender wrote them.
    """

    def __init__(self, owners_id: str) -> None:
        forms = {unicodedata.normalize(form, owners_id) for form in ("NFC", "NFD")}
        forms |= {owners_id, normal_id(owners_id)}
        quoted = {form.replace("\\", "\\\\").replace('"', '""') for form in forms}
        in_json = {json.dumps(form)[1:-1] for form in forms}
        self._words = {word.encode() for word in forms | quoted | in_json}
        self.is_searchable = min(len(form.encode()) for form in forms) >= LEAST_BYTES

    def is_in(self, *parts: bytes) -> bool:
        """Return whether one of the parts contains it."""
        return any(word in part for part in parts for word in self._words)

    def is_within(self, content: Iterable[bytes]) -> bool:
        """Search content that comes in parts, including across their boundaries."""
        before, longest = b"", max(map(len, self._words))
        for part in content:
            window = before + part
            if self.is_in(window):
                return True
            before = window[-longest:]
        return False


def search_postgres(engine: Engine, sought: RawId) -> Iterator[str]:
    """Yield table and start of every row that holds the id."""
    with engine.connect() as connection:
        for table in connection.scalars(_TABLES).all():
            # The names come from the catalogue, quoted by the server.
            query = text(f"SELECT t::text FROM {table} AS t")  # noqa: S608
            streamed = connection.execution_options(yield_per=_ROWS_AT_ONCE)
            for row in streamed.scalars(query):
                if sought.is_in(row.encode()):
                    yield f"table {table}, row {row[1:].partition(',')[0]}"


def search_redis(connection: Redis, sought: RawId) -> Iterator[str]:
    """Yield the kind of every key that holds the id in its name or value."""
    for key in connection.scan_iter():
        parts = (key, *_values(connection, key))
        if sought.is_in(*parts, *map(_inflated, parts)):
            yield f"Redis, a key that begins with {key[:8].decode(errors='replace')!r}"


def search_files(root: Path, sought: RawId) -> Iterator[tuple[Path, bool]]:
    """Yield every file below a directory that holds the id, and whether it could be read."""
    for path in sorted(root.rglob("*")):
        try:
            if path.is_file():
                with path.open("rb") as file:
                    found = sought.is_within(iter(lambda: file.read(_BUFFER_BYTES), b""))
                if found:
                    yield path, True
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            yield path, False


def _values(connection: Redis, key: bytes) -> list[bytes]:
    """Return what a key holds, whatever its type."""
    client: Any = connection
    readers: dict[bytes, Callable[[], list[bytes]]] = {
        b"string": lambda: [client.get(key) or b""],
        b"hash": lambda: [part for pair in client.hgetall(key).items() for part in pair],
        b"list": lambda: list(client.lrange(key, 0, -1)),
        b"set": lambda: list(client.smembers(key)),
        b"zset": lambda: list(client.zrange(key, 0, -1)),
        b"stream": lambda: [
            part for _, fields in client.xrange(key) for pair in fields.items() for part in pair
        ],
    }
    read = readers.get(client.type(key))
    return [client.dump(key) or b""] if read is None else read()


def _inflated(content: bytes) -> bytes:
    """Decompress content compressed with zlib, as the queue's jobs are; else return nothing."""
    with suppress(zlib.error):
        return zlib.decompress(content)
    return b""

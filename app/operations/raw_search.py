"""Searches raw bytes: all of PostgreSQL, all of Redis, all files of a directory.

The search terms stay in this process: in a query they would reach the servers' own logs and memory.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis
from sqlalchemy import Engine, text

from app.operations.spellings import Spellings

_ROWS_AT_ONCE = 1000
_BUFFER_BYTES = 4 * 1024 * 1024
_TABLES = text("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")


def search_postgres(engine: Engine, spellings: Spellings) -> Iterator[tuple[str, str]]:
    """Yield (table and start of the row, spelling) of every row that holds the id."""
    with engine.connect() as connection:
        for table in connection.scalars(_TABLES).all():
            # The names come from the catalogue, quoted by the server.
            query = text(f"SELECT t::text FROM {table} AS t")  # noqa: S608
            streamed = connection.execution_options(yield_per=_ROWS_AT_ONCE)
            for row in streamed.scalars(query):
                how = spellings.found_in(row.encode())
                if how is not None:
                    yield f"table {table}, row {row[1:].partition(',')[0]}", how


def search_redis(connection: Redis, spellings: Spellings) -> Iterator[tuple[str, str]]:
    """Yield (kind of key, spelling) of every key that holds the id in its name or value."""
    for key in connection.scan_iter():
        for part in (key, *_values(connection, key)):
            how = spellings.found_in(part) or spellings.found_in(_inflated(part))
            if how is not None:
                yield f"Redis, a key that begins with {key[:8].decode(errors='replace')!r}", how
                break


def search_files(root: Path, spellings: Spellings) -> Iterator[tuple[Path, str | None]]:
    """Yield (file, spelling) of every file that holds the id; None for an unreadable file."""
    for path in sorted(root.rglob("*")):
        try:
            if path.is_file():
                with path.open("rb") as file:
                    how = spellings.found_in_parts(iter(lambda: file.read(_BUFFER_BYTES), b""))
                if how is not None:
                    yield path, how
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            yield path, None


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

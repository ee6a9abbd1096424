"""Everything that the servers hold, as one text to search."""

import base64
import zlib
from collections.abc import Iterable, Iterator

from redis import Redis
from sqlalchemy import Engine, text

from app.runtime.locations import redis_connection
from app.services import Services


def stores_of(services: Services) -> Iterator[tuple[str, str | bytes]]:
    """Yield what Postgres and Redis hold, under their names."""
    yield "postgres", everything_in_postgres(services.database.engine)
    yield "redis", everything_in_redis(redis_connection(services.settings))


def everything_in_postgres(engine: Engine) -> str:
    """Return every row of every table as text; bytes in hex."""
    with engine.connect() as connection:
        tables = connection.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).all()
        rows = [
            row
            for table in tables
            for row in connection.scalars(text(f'SELECT t::text FROM "{table}" AS t'))
        ]
    return "\n".join(rows)


def everything_in_redis(connection: Redis) -> bytes:
    """Return every key and value of every database, as Redis itself serialises them."""
    parts: list[bytes] = []
    for key in connection.scan_iter():
        parts += [key, connection.dump(key) or b""]
        kind = connection.type(key)
        if kind == b"string":
            parts.append(connection.get(key) or b"")
        elif kind == b"hash":
            parts += [part for pair in connection.hgetall(key).items() for part in pair]
        elif kind == b"list":
            parts += connection.lrange(key, 0, -1)
        elif kind == b"set":
            parts += connection.smembers(key)
        elif kind == b"zset":
            parts += connection.zrange(key, 0, -1)
        elif kind == b"stream":
            entries = connection.xrange(key)
            parts += [part for _, fields in entries for pair in fields.items() for part in pair]
    return b"\n".join([*parts, *_unpacked(parts)])


def _unpacked(parts: Iterable[bytes]) -> list[bytes]:
    """Return what RQ has compressed: the data of jobs, and tracebacks in base64 too."""
    found = []
    for part in parts:
        for decode in (bytes, base64.b64decode):
            try:
                found.append(zlib.decompress(decode(part)))
            except (ValueError, zlib.error):
                continue
    return found

"""Everything that the servers hold, as one text to search."""

from redis import Redis
from sqlalchemy import Engine, text


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
            parts.append(repr(connection.xrange(key)).encode())
    return b"\n".join(parts)

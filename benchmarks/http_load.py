"""A client that costs little: HTTP/1.1 over kept connections, from one asyncio loop.

It reads just the status and the announced length, so that the server is what is measured.
"""

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Load:
    """What came of a number of calls."""

    seconds: list[float]
    per_s: float
    errors: int

    @property
    def median_s(self) -> float:
        """Half of the answers took no longer."""
        return median(self.seconds)

    @property
    def p99_s(self) -> float:
        """99 % of the answers took no longer."""
        return sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))]


def call(method: str, path: str, *, key: str = "", body: bytes = b"") -> bytes:
    """Return the bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def load(
    port: int,
    next_call: Callable[[], bytes],
    *,
    connections: int,
    seconds: float,
    per_s: float | None = None,
) -> Load:
    """Send calls at a steady rate, whatever answers take; waiting for a connection counts.

    Without a rate each connection sends its next call as soon as the last one is answered. No
    garbage is collected meanwhile: the client's pauses would be counted as the server's.
    """
    taken: list[float] = []
    errors = 0

    async def go(due: Iterator[float], end: float) -> None:
        nonlocal errors
        async with connected(port) as send:
            for moment in due:
                if moment > end:
                    return
                if (early := moment - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                status, _ = await send(next_call())
                errors += status // 100 != 2
                taken.append(time.perf_counter() - moment)

    async def all_go() -> float:
        began = time.perf_counter()
        now = iter(time.perf_counter, None)
        due = (began + i / per_s for i in itertools.count()) if per_s else now
        await asyncio.gather(*(go(due, began + seconds) for _ in range(connections)))
        return time.perf_counter() - began

    gc.collect()
    gc.disable()
    try:
        spent = asyncio.run(all_go())
    finally:
        gc.enable()
    return Load(taken, len(taken) / spent, errors)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Callable[[bytes], Awaitable[tuple[int, bytes]]]]:
    """Yield what sends a request on one kept connection and returns the answer's status, body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send(message: bytes) -> tuple[int, bytes]:
        writer.write(message)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")]
        body = await reader.readexactly(lengths[0]) if lengths else b""
        return int(head.split(b" ", 2)[1]), body

    try:
        yield send
    finally:
        writer.close()

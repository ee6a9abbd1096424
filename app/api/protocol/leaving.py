"""Detects callers that disconnect."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request


async def disconnection(request: Request) -> None:
    """Return when the caller has disconnected; call after the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _left(request: Request) -> AsyncIterator[threading.Event]:
    left = threading.Event()

    async def watch() -> None:
        await disconnection(request)
        left.set()

    watching = asyncio.ensure_future(watch())
    try:
        yield left
    finally:
        watching.cancel()


Left = Annotated[threading.Event, Depends(_left)]
"""Set when the caller disconnects: work done only for it may stop."""

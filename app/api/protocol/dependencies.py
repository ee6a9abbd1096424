"""Dependencies: parts of the application, and whether the caller has disconnected."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from app.registry.forecasts import PlanMaker
from app.services import Services


def part(name: str) -> Any:  # noqa: ANN401 - what FastAPI calls a dependency
    """Return the dependency that gives an endpoint this part of the application's state."""

    # Asynchronous, like all dependencies that only look something up: others take a thread.
    async def look_up(request: Request) -> object:
        return getattr(request.app.state, name)

    return Depends(look_up)


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


async def _plan_maker(services: Annotated[Services, part("services")], left: Left) -> PlanMaker:
    return partial(services.planners.plan, left=left)


Make = Annotated[PlanMaker, Depends(_plan_maker)]
"""Makes plans within the limits of one call, while its caller is there."""

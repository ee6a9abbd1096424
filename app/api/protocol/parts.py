"""What belongs to the application, and not to a request: dependencies that look it up."""

from typing import Any

from fastapi import Depends, Request


def part(name: str) -> Any:  # noqa: ANN401 - what FastAPI calls a dependency
    """Return the dependency that gives an endpoint this part of the application's state."""

    # Asynchronous, like all dependencies that only look something up: others take a thread.
    async def look_up(request: Request) -> object:
        return getattr(request.app.state, name)

    return Depends(look_up)

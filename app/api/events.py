"""Server-sent events of a run: its state after every change.

A client that reconnects with ``Last-Event-ID`` gets the current state unless it already has it. If
the run has ended, the answer is then 204, and a browser does not reconnect.
"""

import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Header
from fastapi.sse import format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.protocol.admission import idle
from app.api.protocol.watching import Watch, Watcher
from app.domain.errors import ExpungeError, UnauthenticatedError
from app.ledger.views.changes import Kind, RunProgress

_KEEP_ALIVE_S = 5.0
"""After this much silence a comment is sent and the caller's key is checked again."""

_LONGEST_S = 3600.0

LastEventId = Annotated[
    str | None, Header(max_length=100, description="The id of the last event received")
]


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


class _WatchedEvents(EventStream):
    def __init__(
        self,
        watching: AbstractContextManager[Watch],
        events: Callable[[Watch], AsyncIterator[bytes]],
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(iter(()), headers=headers)
        self._watching = watching
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, unless the caller has too many streams."""
        with self._watching as watch:
            self.body_iterator = self._events(watch)
            async with idle(scope):
                await super().__call__(scope, receive, send)


EVENT_CONTENT: dict[str, Any] = {
    EventStream.media_type: {
        "schema": {
            "type": "object",
            "description": "One event; 'end' is the last. Its data is JSON with the members "
            f"{', '.join(RunProgress.__dataclass_fields__)}.",
            "required": ["event", "id", "data"],
            "properties": {
                "event": {"enum": ["progress", "end"]},
                "id": {"type": "string"},
                "data": {"type": "string", "contentMediaType": "application/json"},
            },
        }
    }
}


def event_stream(
    watcher: Watcher,
    run_id: str,
    progress: RunProgress,
    *,
    last_event_id: str | None,
    caller_id: str,
    look_again: Callable[[], Awaitable[None]],
) -> Response:
    """Return the events of a run from now on, beginning with the current state.

    They end when ``look_again`` raises ``UnauthenticatedError``; an outage does not end them.
    """
    if progress.has_ended and last_event_id == _id_of(progress):
        return Response(status_code=204)
    return _WatchedEvents(
        watcher.watch(Kind.PROGRESS, run_id, progress, caller_id=caller_id),
        lambda watch: _events(watch, last_event_id, look_again),
    )


async def _events(
    watch: Watch, known: str | None, look_again: Callable[[], Awaitable[None]]
) -> AsyncIterator[bytes]:
    """Yield an event for each change, and a comment after a period of silence."""
    until = time.monotonic() + _LONGEST_S
    while isinstance(progress := watch.facts, RunProgress):
        if _id_of(progress) != known:
            known = _id_of(progress)
            yield _event(progress)
        if progress.has_ended or watch.closed or time.monotonic() > until:
            return
        has_news = await watch.wait(_KEEP_ALIVE_S)
        if not await _may_continue(look_again):
            return
        if not has_news:
            yield format_sse_event(comment="keep-alive")


async def _may_continue(look_again: Callable[[], Awaitable[None]]) -> bool:
    try:
        await look_again()
    except UnauthenticatedError:
        return False
    except (ExpungeError, SQLAlchemyError):
        return True
    return True


def _event(progress: RunProgress) -> bytes:
    return format_sse_event(
        event="end" if progress.has_ended else "progress",
        id=_id_of(progress),
        data_str=_data(progress).decode(),
    )


def _id_of(progress: RunProgress) -> str:
    return hashlib.sha256(_data(progress)).hexdigest()[:16]


def _data(progress: RunProgress) -> bytes:
    return json.dumps(asdict(progress), allow_nan=False).encode()

"""Server-sent events of a run: what its row says, each time that it says something new.

Only the present matters: who comes back with ``Last-Event-ID`` is told what is so now, unless that
is what it knows already. A run that has ended answers 204 then, which tells a browser to stay away.
"""

import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Header
from fastapi.sse import format_sse_event
from starlette.responses import Response, StreamingResponse

from app.api.watching import Watcher
from app.ledger.changes import Facts, Kind, RunProgress

_KEEP_ALIVE_S = 15.0
_LONGEST_S = 3600.0  # then the caller comes back, and its key is looked at again

LastEventId = Annotated[
    str | None, Header(max_length=100, description="The id of the last event that was received")
]


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


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
    watcher: Watcher, run_id: str, facts: Facts, *, last_event_id: str | None
) -> Response:
    """Return the events of a run from now on, the present state first."""
    progress = facts.progress
    if progress is not None and progress.has_ended and last_event_id == _id_of(progress):
        return Response(status_code=204)
    return EventStream(
        _events(watcher, run_id, facts, last_event_id),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(
    watcher: Watcher, run_id: str, facts: Facts, known: str | None
) -> AsyncIterator[bytes]:
    """Yield an event for each change, and a comment where there was none for a while."""
    until = time.monotonic() + _LONGEST_S
    with watcher.watch(Kind.RUN, run_id, facts) as watch:
        while watch.facts is not None and watch.facts.progress is not None:
            progress = watch.facts.progress
            if _id_of(progress) != known:
                known = _id_of(progress)
                yield _event(progress)
            if progress.has_ended or watch.closed or time.monotonic() > until:
                return
            if not await watch.wait(_KEEP_ALIVE_S):
                yield format_sse_event(comment="keep-alive")


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

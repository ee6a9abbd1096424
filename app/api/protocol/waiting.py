"""``Prefer: wait=N`` (RFC 7240): an answer that waits for a change.

Without ``If-None-Match``, a caller waits until the state differs from that at the call. With it,
the caller waits until the answer differs from its copy, so it misses nothing between two calls.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request, Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.api.protocol.access import authenticate, authenticate_again, services_of
from app.api.protocol.admission import CLIENT_LEFT, idle
from app.api.protocol.conditions import names
from app.api.protocol.dependencies import disconnection
from app.api.protocol.etags import etag_of
from app.api.protocol.schemas import Answer
from app.api.protocol.watching import Watch, Watcher
from app.ledger.views.changes import Facts, Kind, facts_of

LONGEST_WAIT_S = 60
_WAIT = re.compile(r'wait\s*=\s*"?(\d{1,9})"?', re.ASCII | re.IGNORECASE)

Prefer = Annotated[
    str | None,
    Header(
        description=f"wait=N delays the answer until there is a change, at most N seconds and at "
        f"most {LONGEST_WAIT_S}",
        examples=["wait=1"],
        max_length=1000,
    ),
]


@dataclass(frozen=True)
class Found:
    """The present answer about a subject; if it is final, waiting is useless."""

    subject_id: str
    answer: Answer
    is_final: bool


async def answer_with_news(
    request: Request,
    watcher: Watcher,
    kind: Kind,
    read: Callable[[Session], Found],
    *,
    prefer: str | None,
) -> Response:
    """Return what ``read`` finds as soon as the caller has not seen it."""
    services = services_of(request)

    def look() -> tuple[Found, Facts | None]:
        with services.database.snapshot() as session:
            found = read(session)
            facts = facts_of(session, kind, [found.subject_id])
            return found, facts.get(found.subject_id)

    wait_s = wait_of(prefer)
    found, facts = await run_in_threadpool(look)
    if wait_s is None:
        return json_response(found.answer)
    if not found.is_final and _has_seen(request, found):
        caller = await authenticate(request)
        with watcher.watch(kind, found.subject_id, facts, caller_id=caller.key_id) as watch:
            async with idle(request.scope):
                has_left = await _until_news(request, watch, facts, wait_s)
        if has_left:
            return Response(status_code=CLIENT_LEFT)
        await authenticate_again(request)
        found, _ = await run_in_threadpool(look)
    response = json_response(found.answer)
    response.headers["Preference-Applied"] = f"wait={wait_s}"
    return response


def wait_of(prefer: str | None) -> int | None:
    """Return how many seconds a caller is willing to wait; None without the preference."""
    for preference in (prefer or "").split(","):
        match = _WAIT.fullmatch(preference.partition(";")[0].strip())
        if match is not None:
            return min(int(match[1]), LONGEST_WAIT_S)
    return None


async def _until_news(request: Request, watch: Watch, seen: Facts | None, wait_s: int) -> bool:
    """Wait for news, or for ``wait_s``; return whether the caller has left."""
    news = asyncio.ensure_future(_another_state(watch, seen))
    gone = asyncio.ensure_future(disconnection(request))
    try:
        await asyncio.wait((news, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return gone.done()
    finally:
        news.cancel()
        gone.cancel()


async def _another_state(watch: Watch, seen: Facts | None) -> None:
    while not watch.closed and watch.facts == seen:
        await watch.wait(LONGEST_WAIT_S)


def _has_seen(request: Request, found: Found) -> bool:
    held = request.headers.get("if-none-match")
    return held is None or names(held, etag_of(_content(found.answer)), weak=True)


def json_response(answer: Answer, status: int = 200) -> Response:
    """Render an answer; it was validated when it was created."""
    return Response(_content(answer), status, media_type="application/json")


def _content(answer: Answer) -> bytes:
    return answer.model_dump_json().encode()

"""``Prefer: wait=N`` (RFC 7240): an answer that waits for a change.

Without ``If-None-Match``, a caller waits until the state differs from that at the call. With it,
the caller waits until the answer differs from its copy, so it misses nothing between two calls.

One thread looks for all waiters, while there are any, when the log has grown and at intervals: it
queries the database once per kind, and wakes those whose facts have changed. A waiter needs no
thread and no database connection of its own.
"""

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request, Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.access.api_keys import Caller
from app.api.protocol.access import authenticate_again, disconnection, services_of
from app.api.protocol.admission import CLIENT_LEFT, idle
from app.api.protocol.conditions import etag_of, names
from app.api.protocol.schemas import Answer
from app.domain.errors import TooManyRequestsError
from app.ledger.views.changes import Facts, Kind, facts_of
from app.runtime.database import Database
from app.runtime.database.wakeups import Signal, WakeUps
from app.runtime.logs import describe

LONGEST_WAIT_S = 60
_INTERVAL_S = 0.25
MOST_WAITS = 256
"""Of one caller, at once."""
_RETRY_AFTER_S = 10
_log = logging.getLogger("expunge.api")
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


class Watch:
    """One waiter's view of one thing: ``news`` is set once the facts are not what was ``seen``."""

    def __init__(self, kind: Kind, subject_id: str, seen: Facts | None) -> None:
        self.kind = kind
        self.subject_id = subject_id
        self.seen = seen
        self.news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Wake the waiter; may be called from any thread."""
        self._loop.call_soon_threadsafe(self.news.set)


class Watcher:
    """Looks for changes for all waiters of a process; each caller may have only so many."""

    def __init__(self, database: Database, *, interval_s: float = _INTERVAL_S) -> None:
        self._database = database
        self._wake_ups = WakeUps(database, Signal.NEWS)
        self._interval_s = interval_s
        self._held: Counter[str] = Counter()
        self._lock = threading.RLock()  # a signal handler may call close() during watch()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._failing = False

    @contextmanager
    def watch(
        self, kind: Kind, subject_id: str, seen: Facts | None, *, caller_id: str
    ) -> Iterator[Watch]:
        """Watch one thing until the block ends; ``seen`` is what the waiter already knows.

        Raises:
            TooManyRequestsError: the caller has too many watches.
        """
        watch = Watch(kind, subject_id, seen)
        with self._lock:
            if self._held[caller_id] >= MOST_WAITS:
                raise TooManyRequestsError(
                    f"this caller has {MOST_WAITS} waits already",
                    retry_after_s=_RETRY_AFTER_S,
                )
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="watcher", daemon=True)
                thread.start()  # where it cannot be, nobody waits, and the next one tries again
                self._thread = thread
            self._held[caller_id] += 1
            self._watches.add(watch)
            if self._closing.is_set():
                watch.news.set()
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.discard(watch)
                self._held[caller_id] -= 1
                self._held += Counter()  # drops zero counts

    def close(self) -> None:
        """Wake all waiters for the last time: the process is about to stop."""
        self._closing.set()
        with self._lock:
            for watch in list(self._watches):
                watch.wake()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake_ups.wait(self._interval_s)
            with self._lock:
                if not self._watches:
                    self._wake_ups.close()
                    self._thread = None
                    return
                watches = list(self._watches)
            try:
                self._look(watches)
                self._failing = False
            except Exception as error:  # noqa: BLE001 - the waiters depend on this thread
                if not self._failing:
                    _log.warning("watching for changes is interrupted: %s", describe(error))
                self._failing = True

    def _look(self, watches: list[Watch]) -> None:
        for kind in Kind:
            concerned = [watch for watch in watches if watch.kind is kind]
            if not concerned:
                continue
            with self._database.transaction() as session:
                found = facts_of(session, kind, {watch.subject_id for watch in concerned})
            for watch in concerned:
                if found.get(watch.subject_id) == watch.seen:
                    continue
                try:
                    watch.wake()
                except RuntimeError:  # the waiter's event loop has ended
                    with self._lock:
                        self._watches.discard(watch)


@dataclass(frozen=True)
class Found:
    """The present answer about a subject; if it is final, waiting is useless."""

    subject_id: str
    answer: Answer
    is_final: bool


async def answer_with_news(
    request: Request,
    caller: Caller,
    kind: Kind,
    read: Callable[[Session], Found],
    *,
    prefer: str | None,
    look_again: Callable[[Request], Awaitable[object]] = authenticate_again,
) -> Response:
    """Return what ``read`` finds as soon as the caller has not seen it.

    ``look_again`` raises ``UnauthenticatedError`` if the caller may no longer see it then.
    """
    services = services_of(request)
    watcher: Watcher = request.app.state.watcher

    def look() -> tuple[Found, Facts | None]:
        with services.database.snapshot() as session:
            found = read(session)
            facts = facts_of(session, kind, [found.subject_id])
            return found, facts.get(found.subject_id)

    wait_s = wait_of(prefer)
    found, facts = await run_in_threadpool(look)
    if wait_s is None:
        return json_response(found.answer)
    held = request.headers.get("if-none-match")
    has_seen = held is None or names(held, etag_of(_content(found.answer)), weak=True)
    if has_seen and not found.is_final:
        with watcher.watch(kind, found.subject_id, facts, caller_id=caller.key_id) as watch:
            async with idle(request.scope):
                has_left = await _until_news(request, watch, wait_s)
        if has_left:
            return Response(status_code=CLIENT_LEFT)
        await look_again(request)
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


async def _until_news(request: Request, watch: Watch, wait_s: int) -> bool:
    """Wait for news, or for ``wait_s``; return whether the caller has left."""
    news = asyncio.ensure_future(watch.news.wait())
    gone = asyncio.ensure_future(disconnection(request))
    try:
        await asyncio.wait((news, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return gone.done()
    finally:
        news.cancel()
        gone.cancel()


def json_response(answer: Answer, status: int = 200) -> Response:
    """Render an answer; it was validated when it was created."""
    return Response(_content(answer), status, media_type="application/json")


def _content(answer: Answer) -> bytes:
    return answer.model_dump_json().encode()

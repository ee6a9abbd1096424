"""Waiting for changes: one thread polls for all waiters.

The thread runs while there are waiters, queries the database once per kind and interval, and wakes
those whose facts have changed. A waiter needs no thread and no database connection of its own.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from app.api.protocol.dependencies import part
from app.domain.errors import TooManyRequestsError
from app.ledger.views.changes import Facts, Kind, facts_of
from app.runtime.database import Database
from app.runtime.logs import describe

_INTERVAL_S = 0.25
_RETRY_AFTER_S = 10
_log = logging.getLogger("expunge.api")


class Watch:
    """One waiter's view of one thing.

    Attributes:
        facts: the newest facts the waiter was woken for; None once the thing is gone.
        closed: whether the process is about to stop, so that waiting should end.
    """

    def __init__(self, kind: Kind, subject_id: str, seen: Facts | None) -> None:
        self.kind = kind
        self.subject_id = subject_id
        self.facts = seen
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until the facts have changed; return False on a timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def wake_for(self, facts: Facts | None) -> None:
        """Store the current facts; called by the watching thread."""
        if facts != self.facts:
            self._loop.call_soon_threadsafe(self._wake, facts)

    def close(self) -> None:
        """Wake the waiter for the last time; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._close)

    def _wake(self, facts: Facts | None) -> None:
        self.facts = facts
        self._news.set()

    def _close(self) -> None:
        self.closed = True
        self._news.set()


class Watcher:
    """Polls for changes for all waiters of a process; each caller may have only so many."""

    def __init__(
        self, database: Database, *, most_per_caller: int, interval_s: float = _INTERVAL_S
    ) -> None:
        self._database = database
        self._most_per_caller = most_per_caller
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
            if self._held[caller_id] >= self._most_per_caller:
                raise TooManyRequestsError(
                    f"this caller has {self._most_per_caller} waits and streams already",
                    retry_after_s=_RETRY_AFTER_S,
                )
            self._held[caller_id] += 1
            self._watches.add(watch)
            watch.closed = self._closing.is_set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
                self._thread.start()
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
                watch.close()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            with self._lock:
                if not self._watches:
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
                self._tell(watch, found.get(watch.subject_id))

    def _tell(self, watch: Watch, facts: Facts | None) -> None:
        try:
            watch.wake_for(facts)
        except RuntimeError:  # the waiter's event loop has ended
            with self._lock:
                self._watches.discard(watch)


WatcherOf = Annotated[Watcher, part("watcher")]

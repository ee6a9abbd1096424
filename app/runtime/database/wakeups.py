"""What one process commits wakes the loops that wait for it: PostgreSQL's LISTEN and NOTIFY.

Each loop goes on by itself after a while: a wake-up is lost with its connection, and none comes
through a pooler.
"""

import time
from contextlib import ExitStack
from enum import StrEnum
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from app.runtime.database.engine import Database, is_pooled

_CHANNEL: Final = "expunge"
_NOTIFY: Final = text("SELECT pg_notify(:channel, :signal)")
_TOGETHER_S: Final = 0.05
"""What is committed within this time of a wake-up has one together: a loop must not run hot."""


class Signal(StrEnum):
    """What loops wait for."""

    DUE = "due"
    """Something is to be done now: it is in the outbox, or an import waits."""
    ERASABLE = "erasable"
    """Records may be erased, or requests completed."""
    NEWS = "news"
    """Something was recorded in the log."""


def wake(session: Session, signal: Signal) -> None:
    """Wake the loops that wait for a signal once the session's transaction has committed."""
    given: set[Signal] = session.info.setdefault(_CHANNEL, set())
    if signal not in given:
        given.add(signal)
        wake_now(session, signal)


def wake_now(database: Session | Connection, signal: Signal) -> None:
    """Do as ``wake`` does; a connection may commit each statement by itself."""
    database.execute(_NOTIFY, {"channel": _CHANNEL, "signal": signal})


class WakeUps:
    """What wakes one thread's loop. It keeps a connection open until it is closed."""

    def __init__(self, database: Database, *signals: Signal) -> None:
        self._database = database
        self._signals = frozenset(signals)
        self._opened = ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._pooled = False
        self._heard_at = -_TOGETHER_S

    def wait(self, timeout_s: float) -> frozenset[Signal]:
        """Wait for signals, at most so long; return them.

        All of them, where it has not listened until now: any may have been missed.
        """
        until = time.monotonic() + timeout_s
        time.sleep(max(0.0, min(self._heard_at + _TOGETHER_S, until) - time.monotonic()))
        heard = frozenset[Signal]()
        try:
            if self._connection is None and not self._pooled and self._listen():
                heard = self._signals
            while self._connection and not heard and (left_s := until - time.monotonic()) > 0:
                found = self._connection.notifies(timeout=left_s, stop_after=1)
                heard = self._signals.intersection([each.payload for each in found])
        except Exception:  # noqa: BLE001 - the loop depends on this, and goes on by itself
            self.close()
        if heard:
            self._heard_at = time.monotonic()
        else:
            time.sleep(max(0.0, until - time.monotonic()))
        return heard

    def close(self) -> None:
        """Listen no longer, until it is waited again."""
        self._connection = None
        self._opened.close()

    def _listen(self) -> bool:
        connection = self._opened.enter_context(self._database.at_once())
        self._pooled = is_pooled(connection)
        if self._pooled:
            self._opened.close()
            return False
        self._opened.callback(connection.invalidate)  # no other caller's: it hears of everything
        connection.exec_driver_sql(f"LISTEN {_CHANNEL}")
        driver: Any = connection.connection.driver_connection
        self._connection = driver
        return True

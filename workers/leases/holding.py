"""Work that this worker holds for as long as it gives signs of life.

A thread sends them to Postgres, at most a few times a second; the work never waits for it. During
an outage of Postgres it keeps trying: the lease is lost only when Postgres says so. Work that goes
on all the same once it is to end is given up, and its process killed.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, Self, TypedDict, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.domain.errors import LeaseLostError, RunInterruptedError
from app.ledger import repository
from app.runtime.database import Database
from app.runtime.logs import describe
from app.runtime.processes.stopping import GRACE_S, Repeated, StopSignal
from app.runtime.spans import Span, hand_over

_log = logging.getLogger("expunge.lease")
_REPORT_INTERVAL_S = 0.25
YIELD_AFTER_S: Final = 5.0
"""How long a run may wait for a worker before what gives way to it does."""


class Term(TypedDict):
    """How long a lease lasts after each heartbeat, and what says that this worker is to stop."""

    lease_s: float
    stop: StopSignal


class Holding:
    """One attempt at one piece of work.

    Attributes:
        what: the work, for messages.
        gives_way: whether it is handed back when a run waits: people wait for what that forgets.
        give_up: records why the attempt ends, where it ends with its process.
    """

    gives_way: ClassVar[bool] = False

    def __init__(self, database: Database, what: str, **term: Unpack[Term]) -> None:
        self._database = database
        self.what = what
        self._lease_s = term["lease_s"]
        self._stop_signal = term["stop"]
        self._changed = False
        self._lost = threading.Event()
        self._run_waits = False
        self._prolonged = self._looked = time.monotonic()
        self._over_since: float | None = None
        self.give_up: Callable[[Exception], None] = lambda _: None
        self._rounds = Repeated(
            "lease",
            self._keep_alive,
            pause_s=_REPORT_INTERVAL_S,
            longest_s=_REPORT_INTERVAL_S,
            on_failure=lambda error: _log.warning(
                "%s: heartbeat failed: %s", self.what, describe(error)
            ),
        )

    def __enter__(self) -> Self:
        self._begun_ns = time.time_ns()
        self._rounds.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rounds.stop()
        # How it ended is said by the process that has the lease now.
        if kind is None or not issubclass(kind, LeaseLostError):
            hand_over(lambda: self._spans(None if kind is None else kind.__name__))

    def _spans(self, error: str | None) -> Iterable[Span]:  # noqa: ARG002 - for those that trace
        """Return what traces say of the work, which ends now; ``error`` is a type's name."""
        return ()

    def check(self) -> None:
        """Check whether the work may continue; cheap.

        Raises:
            LeaseLostError: another worker holds it; stop and leave no trace.
            RunInterruptedError: this worker was asked to stop, or a run waits for it.
        """
        if self._lost.is_set():
            raise LeaseLostError(f"the {self.what} is held by another worker or is over")
        self.check_stop()

    def check_stop(self) -> None:
        """Check only whether this worker may continue, or raise ``RunInterruptedError``."""
        if self._stop_signal.is_set():
            raise RunInterruptedError("the worker was asked to stop")
        if self._run_waits:
            raise RunInterruptedError("a run waits for this worker")

    def _beat(self, connection: Connection) -> None:
        """Prolong the lease in one statement; ``LeaseLostError`` if it is not held any more."""
        raise NotImplementedError

    def _keep_alive(self) -> None:
        """Send a sign of life if it is due, or there is something to report."""
        self._end_if_over()
        if self._lost.is_set():
            return
        if self.gives_way and time.monotonic() - self._looked > YIELD_AFTER_S / 5:
            self._looked = time.monotonic()
            with self._database.transaction() as session:
                self._run_waits |= repository.is_waiting(session, longer_than_s=YIELD_AFTER_S)
        if not self._changed and time.monotonic() - self._prolonged < self._lease_s / 3:
            return
        self._changed = False
        try:
            # In one statement: a process that freezes here must not block others.
            with self._database.at_once() as connection:
                self._beat(connection)
        except LeaseLostError:
            self._lost.set()
        except SQLAlchemyError:
            self._changed = True
            raise
        else:
            self._prolonged = time.monotonic()

    def _end_if_over(self) -> None:
        """Kill this process if its work should have ended a while ago, and goes on."""
        try:
            self.check()
        except (LeaseLostError, RunInterruptedError) as error:
            self._over_since = self._over_since or time.monotonic()
            if time.monotonic() - self._over_since > GRACE_S:
                _log.error("%s goes on, and is killed: %s", self.what, error)
                self.give_up(error)
                os.kill(os.getpid(), signal.SIGKILL)

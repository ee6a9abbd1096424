"""Supervises a machine's processes: restarts children that end by themselves.

Children stop when the supervisor is gone, even if it was killed, so orphans never hold a port or a
run of the next supervisor.
"""

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.runtime.logs import describe
from app.runtime.processes.stopping import GRACE_S, StopSignal, stop_with_parent

_log = logging.getLogger("expunge.supervisor")
_SUPERVISOR = "EXPUNGE_SUPERVISOR_PID"
_CHECK_INTERVAL_S = 0.5
_FIRST_DELAY_S = 1.0
_LONGEST_DELAY_S = 30.0
_STEADY_AFTER_S = 10.0


@dataclass
class Backoff:
    """Delays restarts of a process; all times are in s on one monotonic clock.

    It restarts immediately after a run of ten seconds. Otherwise it waits 1 s, then twice as long
    after each early end, up to 30 s.
    """

    delay_s: float = 0.0
    started_at: float | None = None
    due_at: float = -math.inf

    def note_start(self, now: float) -> None:
        """Record that the process is being started."""
        self.started_at = now

    def note_end(self, now: float) -> bool:
        """Record that the process is not running; return whether it was running before."""
        if self.started_at is None:
            return False
        early = now - self.started_at < _STEADY_AFTER_S
        self.delay_s = min(max(_FIRST_DELAY_S, 2 * self.delay_s), _LONGEST_DELAY_S) if early else 0
        self.started_at = None
        self.due_at = now + self.delay_s
        return True

    def is_due(self, now: float) -> bool:
        """Return whether the process may be started."""
        return now >= self.due_at


@dataclass
class Child:
    """A process to keep running."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    backoff: Backoff = field(default_factory=Backoff)

    def start(self) -> None:
        """Start the process in its own session, so that only this module stops it."""
        self.backoff.note_start(time.monotonic())
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, _SUPERVISOR: str(os.getpid())},
            start_new_session=True,
        )

    def has_ended(self) -> bool:
        """Return whether the process is not running."""
        return self.process is None or self.process.poll() is not None

    def keep_up(self) -> None:
        """Restart the process if it has ended, with growing delays."""
        if not self.has_ended():
            return
        now = time.monotonic()
        if self.backoff.note_end(now) and self.process is not None:
            delay_s = self.backoff.delay_s
            _log.warning("%s ended; starting it again in %.0f s", self.name, delay_s)
        if self.backoff.is_due(now):
            self.start()

    def wait_until_stopped(self) -> None:
        """Wait for a process that was asked to stop; kill it after a timeout."""
        if self.process is None:
            return
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def supervise(
    children: Sequence[Child], stop: StopSignal, *, keep_up: Callable[[], None] = lambda: None
) -> None:
    """Run children until asked to stop, then stop them.

    They are started in this order, and restarted when they end. ``keep_up`` is called twice a
    second, for servers that are not children; its failures are retried, and told when they change.
    """
    attempts = (keep_up, *(child.keep_up for child in children))
    failing = dict.fromkeys(attempts, "")
    try:
        while not stop.is_set():
            for attempt in attempts:
                told, failing[attempt] = failing[attempt], ""
                try:
                    attempt()
                except Exception as error:  # noqa: BLE001 - one failure must not stop the others
                    failing[attempt] = describe(error)
                    if failing[attempt] != told:
                        _log.error("trying again: %s", failing[attempt])
            stop.wait(_CHECK_INTERVAL_S)
    finally:
        for child in children:
            if child.process is not None:
                child.process.terminate()
        for child in children:
            child.wait_until_stopped()


def stop_with_supervisor() -> None:
    """Stop this process when its supervisor is gone; without a supervisor, do nothing."""
    supervisor = os.environ.pop(_SUPERVISOR, None)
    if supervisor is not None:
        stop_with_parent(int(supervisor))

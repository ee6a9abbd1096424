"""Keeps a machine's processes going: children are started again when they end by themselves."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_log = logging.getLogger("expunge.supervisor")
_CHECK_INTERVAL_S = 0.5
_RESTART_DELAY_S = 1.0
_STOP_TIMEOUT_S = 20.0


@dataclass
class Child:
    """A process to keep going."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    started_at: float = 0.0

    def start(self) -> None:
        """Start the process in a session of its own, so that it stops when it is told to."""
        self.process = subprocess.Popen(self.command, start_new_session=True)
        self.started_at = time.monotonic()

    def has_ended(self) -> bool:
        """Say whether the process is not running."""
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """Ask the process to stop; kill it and its children if it does not."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def supervise(children: Sequence[Child], *, keep_up: Callable[[], None] = lambda: None) -> None:
    """Run children until SIGTERM or SIGINT, then stop them in reverse order.

    Args:
        children: started in this order, and again whenever one ends.
        keep_up: called twice a second, for servers that are no children.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    for child in children:
        child.start()
    try:
        while not stop.wait(_CHECK_INTERVAL_S):
            keep_up()
            for child in children:
                if child.has_ended() and time.monotonic() - child.started_at > _RESTART_DELAY_S:
                    _log.warning("%s ended; starting it again", child.name)
                    child.start()
    finally:
        for child in reversed(children):
            child.stop()


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", *arguments]

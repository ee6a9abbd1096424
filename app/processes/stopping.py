"""How a process learns that it has to stop: by a signal, or because its parent is gone."""

import os
import signal
import threading
import time

GRACE_S = 20.0
_CHECK_INTERVAL_S = 0.25


class StopSignal:
    """Whether this process was asked to stop.

    Not a ``threading.Event``: setting one in a signal handler, while the same thread is about to
    wait for it, would wait for a lock that the thread itself holds.
    """

    def __init__(self) -> None:
        self._is_set = False

    def listen(self) -> "StopSignal":
        """Let SIGTERM and SIGINT set this from now on; return itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.set)
        return self

    def set(self, *_: object) -> None:
        """Record that the process was asked to stop; usable as a signal handler."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is asked to stop, at most ``timeout_s``; return whether it was."""
        deadline = time.monotonic() + timeout_s
        while not self._is_set and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _CHECK_INTERVAL_S))
        return self._is_set


def stop_with_parent(parent_pid: int) -> None:
    """Stop this process as soon as ``parent_pid`` is not its parent any more.

    It gets SIGTERM, and ``GRACE_S`` to stop; then it is ended at once. A thread watches, so this
    works on every system, and however the parent dies.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_CHECK_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()

"""Stops a process on a signal, or when its parent has died."""

import os
import signal
import threading
import time

GRACE_S = 20.0
_CHECK_INTERVAL_S = 0.25


class StopSignal:
    """Whether this process was asked to stop.

    Not a ``threading.Event``: setting one in a signal handler deadlocks if the same thread is
    about to wait for it and holds its lock.
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


def stop_with_parent(parent_pid: int, *, hangs_after_s: float | None = None) -> None:
    """Stop this process as soon as ``parent_pid`` is no longer its parent.

    It gets SIGTERM, and is killed after ``GRACE_S``. A polling thread works on every system,
    however the parent dies. Compiled code may keep all threads from running for ever: with
    ``hangs_after_s``, the kernel ends this process by SIGALRM if the thread stands still so long.
    """

    def put_off_the_end() -> None:
        if hangs_after_s is not None:
            signal.setitimer(signal.ITIMER_REAL, hangs_after_s)

    def watch() -> None:
        while os.getppid() == parent_pid:
            put_off_the_end()
            time.sleep(_CHECK_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    if hangs_after_s is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    put_off_the_end()  # the parent may be gone already, and the thread may never get its turn
    threading.Thread(target=watch, name="parent", daemon=True).start()

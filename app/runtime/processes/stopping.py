"""Stops a process on a signal or when its parent has died; work repeated until it is stopped."""

import os
import signal
import threading
import time
from collections.abc import Callable

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


_SHORTEST_DELAY_S = 1.0


class Repeated:
    """A thread that works in rounds, whatever fails meanwhile.

    ``pause_s`` is the time between two rounds; after failures it grows from a second to
    ``longest_s``. ``on_failure`` gets the first of several failures in a row.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        pause_s: float,
        longest_s: float = _SHORTEST_DELAY_S,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.stopping = threading.Event()
        self._work = work
        self._pause_s = pause_s
        self._longest_s = longest_s
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, a pause from now."""
        self._thread.start()

    def stop(self, wait_s: float | None = None) -> None:
        """Begin no further round, and wait for the present one, perhaps not for longer."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def _run(self) -> None:
        delay_s, failing = self._pause_s, False
        while not self.stopping.wait(delay_s):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - what is away may come back
                if not failing:
                    self._on_failure(error)
                failing = True
                delay_s = min(max(_SHORTEST_DELAY_S, 2 * delay_s), self._longest_s)
            else:
                delay_s, failing = self._pause_s, False

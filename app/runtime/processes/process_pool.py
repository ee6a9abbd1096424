"""Runs calls that may need much time or memory in a few separate processes.

If a call exceeds its time or memory, or its caller disconnects, its process is killed; the next
call starts another one. Neither ``concurrent.futures`` nor ``multiprocessing`` can do that. Pools
that can (pebble's) start processes with the server's environment, and thus its secrets, and run its
main module again. These processes run this module: they get no setting, key or file of the server,
only one end of a pipe, write nothing, cannot be dumped, and end when its other end is closed.
"""

import importlib
import os
import queue
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, ParamSpec, TypeVar

from app.domain.errors import ExpungeError, OverloadedError, TooCostlyError
from app.runtime.processes import starting
from app.runtime.processes.hardening import harden
from app.runtime.processes.stopping import stop_with_parent

Returned = TypeVar("Returned")
Arguments = ParamSpec("Arguments")

_LOOK_INTERVAL_S = 0.05
_START_LIMIT_S = 120.0


class ProcessPool:
    """Runs functions in processes that are started on demand.

    Args:
        name: name of the work, for errors.
        size: how many calls run at once, each in its own process.
        waiting: how many more calls may wait.
        time_limit_s: for one call, not counting its wait.
        memory_bytes: how much one process may allocate.
        preload: a module to import before the first call; its time does not count.
    """

    def __init__(
        self,
        name: str,
        *,
        size: int,
        waiting: int,
        time_limit_s: float,
        memory_bytes: int,
        preload: str,
    ) -> None:
        self._name = name
        self._time_limit_s = time_limit_s
        self._closing = threading.Event()
        self._places = threading.BoundedSemaphore(size + waiting)
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        processes = [_Process(memory_bytes, preload) for _ in range(size)]
        for process in reversed(processes):
            self._idle.put(process)
        self._end = weakref.finalize(self, _end_all, processes)

    def call(
        self,
        left: threading.Event | None,
        function: Callable[Arguments, Returned],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Returned:
        """Call a function of a module in a pooled process; arguments and result are pickled.

        ``left`` is set when the caller disconnects.

        Raises:
            OverloadedError: too many calls wait, the caller disconnected, or the pool was closed.
            TooCostlyError: the call exceeded its time or memory.
            ExpungeError: raised by the function.
        """
        if not self._places.acquire(blocking=False):
            raise OverloadedError(f"{self._name} is busy: repeat the call")
        try:
            with self._turn(left) as process:
                returned: Returned = self._run(process, left, (function, args, kwargs))
                return returned
        finally:
            self._places.release()

    def close(self) -> None:
        """End all calls and processes; callable from any thread and from signal handlers."""
        self._closing.set()
        self._end()

    @contextmanager
    def _turn(self, left: threading.Event | None) -> Iterator["_Process"]:
        while True:
            self._check(left)
            try:
                process = self._idle.get(timeout=_LOOK_INTERVAL_S)
                break
            except queue.Empty:
                continue
        try:
            yield process
        finally:
            self._idle.put(process)

    def _run(self, process: "_Process", left: threading.Event | None, work: object) -> Any:  # noqa: ANN401 - checked by ``call``
        try:
            connection = process.connected()
            if connection is None:
                connection = process.start()
                self._await(connection, left, _START_LIMIT_S)
                connection.recv()
            connection.send(work)
            self._await(connection, left, self._time_limit_s)
            answer = connection.recv()
        except (EOFError, OSError) as error:
            process.kill()
            self._check(left)
            raise OverloadedError(f"{self._name} was interrupted: repeat the call") from error
        except BaseException:
            process.kill()
            raise
        succeeded, value = answer
        if succeeded:
            return value
        if isinstance(value, MemoryError):
            process.kill()
            raise TooCostlyError(f"{self._name} takes more memory than one call may: ask for less")
        raise value

    def _await(self, connection: Connection, left: threading.Event | None, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not connection.poll(_LOOK_INTERVAL_S):
            self._check(left)
            if time.monotonic() > end:
                raise TooCostlyError(
                    f"{self._name} takes longer than the {limit_s:g} s that one call may: "
                    "ask for less"
                )

    def _check(self, left: threading.Event | None) -> None:
        """Raise ``OverloadedError`` if the call's result is no longer needed."""
        if self._closing.is_set():
            raise OverloadedError("the service is stopping")
        if left is not None and left.is_set():
            raise OverloadedError("the caller has left")


class _Process:
    """A slot for a process, which runs one call at a time."""

    def __init__(self, memory_bytes: int, preload: str) -> None:
        self._memory_bytes = memory_bytes
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def connected(self) -> Connection | None:
        """Return the connection to the process if it is running."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._connection

    def start(self) -> Connection:
        """Start a process; its first message reports that it is ready."""
        self.kill()
        connection, other_end = Pipe()
        with other_end:
            number = other_end.fileno()
            self._process = starting.start(
                "app.runtime.processes.process_pool",
                *(number, os.getpid(), self._memory_bytes, self._preload),
                pass_fds=[number],
            )
        self._connection = connection
        return connection

    def kill(self) -> None:
        """Kill the process and clear the slot."""
        self.end()
        if self._process is not None:
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def end(self) -> None:
        """End the process; a caller waiting for its answer gets an error."""
        if self._process is not None:
            self._process.kill()


def _end_all(processes: list[_Process]) -> None:
    for process in processes:
        process.end()


_NICE: Final = 5  # the server's own work has priority


def main() -> None:
    """Serve the calls that come through the pipe whose number is the first argument."""
    number, parent, memory_bytes, preload = sys.argv[1:]
    stop_with_parent(int(parent))
    harden()
    os.nice(_NICE)
    importlib.import_module(preload)
    # Limits only allocations: mapped libraries would count for RLIMIT_AS.
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    with Connection(int(number)) as connection:
        connection.send((True, None))
        while True:
            try:
                call = connection.recv()
            except EOFError:
                return
            connection.send(_answer(call))


def _answer(call: Any) -> tuple[bool, object]:  # noqa: ANN401 - a function and its arguments
    """Return whether a call succeeded, and what it returned or raised."""
    function, args, kwargs = call
    try:
        return True, function(*args, **kwargs)
    except (ExpungeError, MemoryError) as error:
        return False, error
    except Exception as error:  # noqa: BLE001 - its message may quote its arguments
        return False, RuntimeError(f"{type(error).__name__} in {function.__module__}")


if __name__ == "__main__":
    main()

"""Distinguishes the embedded servers' processes from others.

Process ids are reused and pid files go stale, so a process is signalled only after its owner and
command line were checked.
"""

import os
import signal
import time
from collections.abc import Callable

import psutil  # type: ignore[import-untyped]

from app.runtime.embedded.account import find_account

Argv = tuple[str, ...]
POLL_S = 0.05


def argv_of(pid: int) -> Argv:
    """Return a process's arguments; empty if it is dead, a zombie or of another account."""
    account = find_account()
    try:
        process = psutil.Process(pid)
        if account is None or process.uids().effective != account.uid:
            return ()
        return tuple(process.cmdline())
    except (psutil.Error, ValueError, OverflowError):
        return ()


def matching(is_ours: Callable[[Argv], bool]) -> list[int]:
    """Return the processes of the servers' account whose arguments match, ordered by id."""
    return [pid for pid in psutil.pids() if (argv := argv_of(pid)) and is_ours(argv)]


def kill_all(is_ours: Callable[[Argv], bool]) -> None:
    """Kill matching processes until none is left: one may fork while another is being killed."""
    while pids := matching(is_ours):
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may end at any moment."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; return whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True

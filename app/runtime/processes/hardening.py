"""Keeps a process's memory out of core dumps, debuggers and swap."""

import ctypes
import logging
import resource
import sys
from pathlib import Path
from typing import Final

_log = logging.getLogger("expunge.hardening")
_CORE_BYTES: Final = 1
"""Too small for any file; unlike 0 it also stops Linux from piping a core to a program."""
_PR_SET_DUMPABLE: Final = 4
_CURRENT_FUTURE_ON_FAULT: Final = 1 | 2 | 4  # of mlockall(2)
_CAP_IPC_LOCK: Final = 14


def harden() -> None:
    """Harden this process and the memory it allocates later; safe to repeat.

    Every entry point calls it first. It prevents core dumps, including those of child programs,
    which cannot raise the limit again. On Linux, only root can attach a debugger or read
    /proc/PID/mem, and memory is locked if ``may_lock_memory`` allows it. Forks inherit the core
    limit but must call this again to lock memory; exec'd programs are not protected otherwise.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = _CORE_BYTES if hard == resource.RLIM_INFINITY else min(_CORE_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        _log.warning("this process stays dumpable: errno %d", ctypes.get_errno())
    if may_lock_memory() and libc.mlockall(_CURRENT_FUTURE_ON_FAULT) != 0:
        _log.warning("memory is not locked and may be swapped: errno %d", ctypes.get_errno())


def may_lock_memory() -> bool:
    """Return whether all memory may be locked; with a limit, later allocations would fail."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return False
    (effective,) = (line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_IPC_LOCK & 1)

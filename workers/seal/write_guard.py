"""Refuses Python's functions that write to disk, start processes or use the network.

An audit hook sees all of them and cannot be removed; it refuses only while a guard is armed: in
every thread while weights are under their target, and in a thread while it encodes records, which
may be the operator's code. It does not see compiled code: libpq's connections to Postgres, which
must work, and writes of native libraries, which ``ram_only`` leaves to the kernel.

Allowed: reading, writing to /dev/null, and using what was opened before. The thread that reads
records may also connect to the store that holds them, while it does (``store_reachable``): the
operator's code never runs there.
"""

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from app.domain.errors import WriteRefusedError

ALLOWED_FILES: Final = frozenset({os.devnull})

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READ_ONLY_MAPS: Final = (mmap.ACCESS_READ, mmap.ACCESS_COPY)
_ALWAYS_REFUSED: Final = frozenset(
    {
        "os.chmod",
        "os.chown",
        "os.link",
        "os.mkdir",
        "os.remove",
        "os.removexattr",
        "os.rename",
        "os.rmdir",
        "os.setxattr",
        "os.symlink",
        "os.truncate",
        "os.utime",
        "sqlite3.connect",
        "tempfile.mkdtemp",
        "tempfile.mkstemp",
        # Other processes have no guard.
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
        # libpq reaches Postgres.
        "socket.bind",
        "socket.sendmsg",
        "socket.sendto",
    }
)


_THREAD: Final = threading.local()


@contextmanager
def store_reachable() -> Iterator[None]:
    """Let this thread connect to the object store until the block ends, to read an object."""
    _THREAD.reads_store = True
    try:
        yield
    finally:
        _THREAD.reads_store = False


_SOMETIMES_REFUSED: Final[Mapping[str, Callable[[tuple[Any, ...]], bool]]] = {
    # By the event's arguments: path, mode and flags; file, length, access and offset; a socket's.
    "open": lambda given: bool(given[2] & _WRITING) and given[0] not in ALLOWED_FILES,
    "mmap.__new__": lambda given: given[0] != -1 and given[2] not in _READ_ONLY_MAPS,
    "socket.connect": lambda _: not getattr(_THREAD, "reads_store", False),
}


class _Guard:
    """How many guards are armed in this process, and whether the hook is installed."""

    armed = 0
    hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    encodes = getattr(_THREAD, "encodes", False)
    if not _Guard.armed and not encodes:
        return
    refused = _SOMETIMES_REFUSED.get(event)
    if event in _ALWAYS_REFUSED or (refused is not None and refused(arguments)):
        # Name no path or address: they may be derived from their content.
        if encodes:
            raise WriteRefusedError(
                f"refused while records are encoded: {event}; encoding may not write files, start "
                "programs or connect, since records could be left there"
            )
        raise WriteRefusedError(f"refused while weights are under their target: {event}")


def _install() -> None:
    if not _Guard.hooked:
        sys.addaudithook(_hook)
        _Guard.hooked = True


@contextmanager
def writes_refused() -> Iterator[None]:
    """Refuse these functions in all threads until the block ends.

    Raises:
        WriteRefusedError: in the code that tries, and out of the block if not handled.
    """
    _install()
    _Guard.armed += 1
    try:
        yield
    finally:
        _Guard.armed -= 1


@contextmanager
def encoding() -> Iterator[None]:
    """Refuse these functions in this thread until the block ends, which encodes records.

    Raises:
        WriteRefusedError: in the code that tries, and out of the block if not handled.
    """
    _install()
    _THREAD.encodes = True
    try:
        yield
    finally:
        _THREAD.encodes = False

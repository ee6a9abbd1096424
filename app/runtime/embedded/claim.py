"""The lock by which one process at a time runs the service in a data directory.

It is held until that process has ended, however it ends. Only its holder stops the embedded
servers: anyone else would take them away from under it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.domain.errors import ConfigurationError

_NAME = "service.lock"


class ClaimedError(ConfigurationError):
    """Another process holds the data directory."""


@contextmanager
def claimed(data_dir: Path) -> Iterator[None]:
    """Hold a data directory, which is created if it is missing.

    Raises:
        ClaimedError: another process holds it.
        OSError: it cannot be used.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = data_dir / _NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _lock(handle, data_dir)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def require_unclaimed(data_dir: Path) -> bool:
    """Check that no process holds a data directory; change nothing.

    Returns:
        Whether the last holder was killed, so that its children may still be stopping.

    Raises:
        ClaimedError: one does.
        OSError: it cannot be read.
    """
    try:
        handle = os.open(data_dir / _NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        _lock(handle, data_dir)
        return os.fstat(handle).st_size > 0
    finally:
        os.close(handle)


def _lock(handle: int, data_dir: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode(errors="replace")
        raise ClaimedError(
            f"{data_dir} (EXPUNGE_DATA_DIR) is used by another expunge, process {holder}; stop it, "
            "or give another directory"
        ) from error

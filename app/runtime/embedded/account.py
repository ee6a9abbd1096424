"""The account that the servers run as.

PostgreSQL refuses to run as root. Started by root, both servers run as a dedicated system user.
"""

import fcntl
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.domain.errors import ConfigurationError

SYSTEM_USER = "expunge"


@dataclass(frozen=True)
class Account:
    """The owner of the servers' processes and files; ``is_separate`` if it is not the caller."""

    uid: int
    gid: int
    is_separate: bool


def find_account() -> Account | None:
    """Return the servers' account; None if root has not created it yet."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), is_separate=False)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid, is_separate=True)


def ensure_account() -> Account:
    """Return the servers' account, created if we are root and it is missing."""
    account = find_account() or _created_account()
    if account.uid == 0:
        raise ConfigurationError(f"the system user {SYSTEM_USER!r} must not be root")
    return account


def _created_account() -> Account:
    with _one_at_a_time():
        account = find_account()
        problem = _add_user() if account is None else ""
        account = account or find_account()
    if account is None:
        raise ConfigurationError(
            f"PostgreSQL cannot run as root, and the system user {SYSTEM_USER!r} could not be "
            f"created ({problem}); create it, or run Expunge as another user"
        )
    return account


def _add_user() -> str:
    """Create the system user; return what went wrong."""
    command = ["useradd", "--system", "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock out other processes: of several ``useradd``, a later one changes the user's id."""
    handle = os.open("/etc", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""The account that the servers run as.

PostgreSQL refuses to run as root. Started by root, both servers run as a dedicated system user.
"""

import os
import pwd
import subprocess
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
    account = find_account()
    problem = ""
    if account is None:
        command = ["useradd", "--system", "--user-group", "--no-create-home"]
        command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            problem = done.stderr.strip()
        except OSError as error:
            problem = str(error)
        # Look it up even after a failure: another process may have created it.
        account = find_account()
    if account is None:
        raise ConfigurationError(
            f"PostgreSQL cannot run as root, and the system user {SYSTEM_USER!r} could not be "
            f"created ({problem}); create it, or run Expunge as another user"
        )
    if account.uid == 0:
        raise ConfigurationError(f"the system user {SYSTEM_USER!r} must not be root")
    return account

"""Under which account the servers run, and what that account may read.

PostgreSQL refuses to run as root. Started by root, both servers run as a system user of their own.
"""

import os
import pwd
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.domain.errors import ConfigurationError

SYSTEM_USER = "expunge"
EVERYONE_READS = stat.S_IRGRP | stat.S_IROTH
EVERYONE_ENTERS = stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True)
class Account:
    """Who owns the servers' processes and files. ``is_separate``: it is not the caller."""

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
    """Return the servers' account, created if we are root and it is missing.

    Raises:
        ConfigurationError: it cannot be created.
    """
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
        # Looked up even after a failure: another process may have been faster.
        account = find_account()
    if account is None:
        raise ConfigurationError(
            f"PostgreSQL cannot run as root, and the system user {SYSTEM_USER!r} could not be "
            f"created ({problem}); create it, or run Expunge as another user"
        )
    if account.uid == 0:
        raise ConfigurationError(f"the system user {SYSTEM_USER!r} must not be root")
    return account


def let_others_traverse(directory: Path) -> None:
    """Let every user pass through a directory and its parents, without listing them.

    Raises:
        OSError: a mode cannot be changed.
    """
    for folder in (directory, *directory.parents):
        mode = folder.stat().st_mode
        if mode & EVERYONE_ENTERS != EVERYONE_ENTERS:
            folder.chmod(stat.S_IMODE(mode) | EVERYONE_ENTERS)


def let_others_run(trees: Iterable[Path]) -> None:
    """Let every user read and run what a wheel holds: public files, whatever umask installed them.

    Raises:
        OSError: a mode cannot be changed.
    """
    passed: set[Path] = set()
    for tree in trees:
        for path in (tree, *tree.rglob("*")):
            # Installers may link files to a cache elsewhere.
            real = path.resolve()
            mode = real.stat().st_mode
            wanted = mode | EVERYONE_READS
            if mode & stat.S_IXUSR:
                wanted |= EVERYONE_ENTERS
            if wanted != mode:
                real.chmod(stat.S_IMODE(wanted))
            if real.parent not in passed:
                let_others_traverse(real.parent)
                passed.add(real.parent)

"""The directories of the embedded servers: names, owners, modes and the lock.

Layout: ``postgres`` (the cluster), ``log``, ``run`` (sockets), ``embedded.lock``. All but the lock
belong to the servers' account, mode 0700. Root owns the data directory itself, so that a
compromised server cannot replace its content, and no other user can enter it (see ``enter``).
"""

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.domain.errors import ConfigurationError
from app.runtime.embedded.account import Account, ensure_account, find_account

# sun_path holds 104 bytes on macOS and 108 on Linux, including the terminating zero.
MAX_SOCKET_PATH_BYTES = 103
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
# PostgreSQL and libpq split socket directories at commas, shells at spaces, URLs at ? and #.
PLAIN_PATH = re.compile(r"[A-Za-z0-9._/-]+")
# Not tempfile.gettempdir(): another process may have another TMPDIR, yet must find the sockets.
SHORT_DIR = Path("/tmp")  # noqa: S108  # ownership is checked before use


class Home:
    """One data directory; ``identity`` names it on its servers' command lines."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().resolve()
        self.identity = "expunge-" + hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:20]
        self.log = self.data_dir / "log"
        inside = self.data_dir / "run"
        fits = len(f"{inside}{LONGEST_SOCKET_NAME}") <= MAX_SOCKET_PATH_BYTES
        plain = PLAIN_PATH.fullmatch(str(inside)) is not None
        self.sockets = inside if fits and plain else SHORT_DIR / self.identity

    def exists(self) -> bool:
        """Return whether servers may have run here; ``ConfigurationError`` if it cannot be read."""
        try:
            return (self.data_dir / "embedded.lock").exists()
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.data_dir}: {error}") from error

    def refuse_foreign_sockets(self) -> None:
        """Check that no other user has created a directory where clients look for ours."""
        try:
            found = self.sockets.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"cannot read {self.sockets}: {error}") from error
        account = find_account()
        ours = {os.geteuid(), account.uid if account else os.geteuid()}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in ours:
            raise ConfigurationError(
                f"{self.sockets} belongs to another user (uid {found.st_uid}); remove it, run as "
                "that user, or choose another data directory"
            )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Create what is missing and hold the lock against other processes."""
        try:
            self._make_data_dir()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(self.data_dir / "embedded.lock", flags, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                account = ensure_account()
                self.refuse_foreign_sockets()
                for directory in (self.log, self.sockets):
                    directory.mkdir(mode=0o700, exist_ok=True)
                    give(directory, account)
                yield
            finally:
                # Closing would not be enough: a concurrent fork shares the lock.
                fcntl.flock(lock, fcntl.LOCK_UN)
                os.close(lock)
        except OSError as error:
            raise ConfigurationError(
                f"the embedded servers cannot use {self.data_dir}: {error}; check who owns it, or "
                "choose another data directory"
            ) from error

    def _make_data_dir(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            found = self.data_dir.stat()
            if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
                raise ConfigurationError(
                    f"{self.data_dir} must belong to the user who runs Expunge, and no other user "
                    "may write to it; correct that or choose another data directory"
                ) from None


def give(directory: Path, account: Account) -> None:
    """Make a directory that we own, or that ``account`` owns already, private to ``account``."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(handle).st_uid
        if owner not in (account.uid, os.geteuid()):
            raise PermissionError(f"{directory} belongs to another user (uid {owner})")
        if owner != account.uid:
            os.fchown(handle, account.uid, account.gid)
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)

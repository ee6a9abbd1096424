"""The data directory and its embedded servers: names, owners, modes and locks.

Layout: ``postgres`` (the cluster), ``log``, ``run`` (sockets), ``embedded.lock``. All but the lock
belong to the servers' account, mode 0700: PostgreSQL refuses to run as root, so started by root,
both servers run as a dedicated system user. Root owns the data directory itself, so that a
compromised server cannot replace its content, and no other user can enter it (see ``enter``).

One process at a time runs the service in a data directory and holds ``service.lock``, however it
ends. Only that process stops the servers: anyone else would take them away from under it.
"""

import fcntl
import hashlib
import os
import pwd
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


_NAME = "service.lock"


class ClaimedError(ConfigurationError):
    """Another process holds the data directory: ``holder``, 0 where that is not known."""

    def __init__(self, message: str, *, holder: int = 0) -> None:
        super().__init__(message)
        self.holder = holder


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
            "or give another directory",
            holder=int(holder or 0),
        ) from error

"""The servers' programs, from their wheels, as the servers' account; and their processes.

Process ids are reused and pid files go stale, so a process is signalled only after its owner and
command line were checked.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from app.domain.errors import ConfigurationError
from app.runtime.embedded import enter
from app.runtime.embedded.home import Home, ensure_account, find_account

Argv = tuple[str, ...]
POLL_S = 0.05
# The caller's environment may hold keys, and a server's environment can be read through SQL.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
_FULL_BYTES = 16 * 2**20
"""What PostgreSQL must have to begin a file of its write-ahead log."""


def wheel_folder(package: str) -> Path:
    """Return a package's folder without importing it; ``ConfigurationError`` if it is missing."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"the Python package {package} is missing; install it, or set EXPUNGE_DATABASE_URL and "
            "EXPUNGE_REDIS_URL to servers of your own"
        )
    return Path(spec.submodule_search_locations[0])


def run_program(
    command: Sequence[str],
    *,
    home: Home,
    folders: Sequence[Path],
    cwd: Path,
    log: Path,
    timeout_s: float,
) -> None:
    """Run a program to its end. It may leave daemons behind.

    Args:
        command: the program and its arguments.
        home: determines the servers' account to run as.
        folders: the folders of the program, of what it loads, reads and writes. As a separate
            account, it sees nothing else in directories that this account may not traverse.
        cwd: its working directory.
        log: the file to mention if it fails.
        timeout_s: after this time it is killed.
    """
    account = ensure_account()
    name = Path(command[0]).name
    logged = _size(log)
    if account.is_separate:
        wish = {
            "command": [str(Path(command[0]).resolve()), *command[1:]],
            "folders": [str(folder.resolve()) for folder in folders],
            "uid": account.uid,
            "gid": account.gid,
            "data_dir": str(home.data_dir),
            "cwd": str(cwd),
        }
        command = [sys.executable, "-I", str(Path(enter.__file__).resolve()), json.dumps(wish)]
    # A file, not a pipe: a daemon would keep the pipe open and block us.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                umask=0o077,
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigurationError(f"cannot run {command[0]}: {error}; see {log}") from error
        if done.returncode != 0:
            if shutil.disk_usage(home.data_dir).free < _FULL_BYTES:
                raise ConfigurationError(
                    f"{name} failed: the disk of {home.data_dir} is full; make room, and it starts"
                )
            output.seek(0)
            printed = " ".join(output.read().decode(errors="replace").split())[-500:]
            reason = _fatal(log, logged) or printed or done.returncode
            raise ConfigurationError(f"{name} failed: {reason}; see {log}")


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _fatal(log: Path, start: int) -> str:
    """Return why PostgreSQL ended, as its log says from a place on."""
    if _size(log) <= start:
        return ""
    added = log.read_bytes()[start:].decode(errors="replace")
    return next(iter(re.findall(r" FATAL:  (.*)", added)), "")


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

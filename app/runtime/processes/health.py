"""``python -m app.runtime.processes.health PART``: exits with 0 if a part is healthy.

The API is checked over HTTP. A dispatcher or a worker is healthy if its process has run for a
while: one that fails at startup is restarted repeatedly and never gets that old.
"""

import os
import sys
import time
import urllib.error
import urllib.request

import psutil  # type: ignore[import-untyped]

from app.domain.errors import ConfigurationError
from app.runtime.processes.hardening import harden
from app.runtime.processes.starting import python_command
from app.runtime.settings import Settings

PARTS = ("api", "dispatcher", "worker")
MIN_AGE_S = 10.0
_TIMEOUT_S = 4.0
_SAME = ("EXPUNGE_DATA_DIR", "EXPUNGE_DATABASE_URL")


def is_well(part: str) -> bool:
    """Return whether the part that runs with this process's settings is healthy."""
    if part == "api":
        url = f"http://127.0.0.1:{Settings().port}/livez"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
    return any(_is_part(process, part) for process in psutil.process_iter())


def _is_part(process: psutil.Process, part: str) -> bool:
    try:
        return (
            process.cmdline()[-3:] == python_command("workers", part)[-3:]
            and process.status() != psutil.STATUS_ZOMBIE
            and time.time() - process.create_time() >= MIN_AGE_S
            and _has_our_settings(process)
        )
    except psutil.Error:
        return False


def _has_our_settings(process: psutil.Process) -> bool:
    """Compare settings; only root can read a hardened process's, so else compare the account."""
    try:
        theirs = process.environ()
    except psutil.AccessDenied:
        return bool(process.uids().effective == os.geteuid())
    return all(theirs.get(name) == os.environ.get(name) for name in _SAME)


def main() -> None:
    """Exit with 0 if the part named on the command line is healthy, else with 1."""
    harden()
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python -m app.runtime.processes.health {'|'.join(PARTS)}")
    try:
        sys.exit(0 if is_well(sys.argv[1]) else 1)
    except ConfigurationError as error:
        sys.exit("error: " + str(error).replace("\n", "\nerror: "))


if __name__ == "__main__":
    main()

"""A file system of a process' own in which little can be written, as containers have it."""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

# Everything is made read-only, but what is mounted onto itself before, and the kernel's own.
_SCRIPT = """
set -e
writable=$1 scratch=$2
shift 2
for path in $writable; do mount --bind "$path" "$path"; done
mount --bind "$scratch" "$scratch"
mount -o remount,bind,noexec,nosuid,nodev "$scratch"
awk '{print $5}' /proc/self/mountinfo | sort -u | while read -r path; do
    case " $writable $scratch " in *" $path "*) continue;; esac
    case $path in /proc*|/sys*|/dev*) continue;; esac
    mount -o remount,bind,ro "$path" 2> /dev/null || true
done
if touch /written-to-root 2> /dev/null; then exit 99; fi
exec "$@"
"""


@cache
def may_confine() -> bool:
    """Say whether this account may give a process mounts of its own."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -o remount,bind,ro /"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def confined(command: Sequence[str], *, writable: Sequence[Path], scratch: Path) -> list[str]:
    """Return the command so that it writes to ``writable`` alone, and to ``scratch`` no programs.

    It is the command itself where this account may not confine it.
    """
    if not may_confine():
        return list(command)
    paths = " ".join(map(str, writable))
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", paths, str(scratch), *command]

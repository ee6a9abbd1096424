"""``python -I enter.py JSON``: runs a program as the servers' account with access to its folders.

Folders that this account may not traverse are not changed. In a mount namespace of the program's
own, each is covered by an empty directory that contains only the needed folders. If root may not
mount, as in most containers, the data directory, which is the service's, becomes traversable but
not listable for all users; other folders are never changed, and the program is refused.

Uses the standard library only, so that it starts fast.
"""

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18


def main() -> None:
    """Switch to the account and execute the program described by the argument."""
    wish: dict[str, Any] = json.loads(sys.argv[1])
    folders = [Path(folder) for folder in wish["folders"]]
    closed = {parent for folder in folders if (parent := first_closed(folder, wish["uid"]))}
    if closed and may_mount():
        cover(closed, folders)
    elif closed:
        Path(wish["data_dir"]).chmod(0o711)
    os.setgroups([])
    os.setgid(wish["gid"])
    os.setuid(wish["uid"])
    for folder in folders:
        if not os.access(folder, os.R_OK | os.X_OK):
            blocking = first_closed(folder, wish["uid"]) or folder
            sys.exit(
                f"the servers' account may not enter {blocking}: run Expunge as a user who is not "
                "root, or keep it and its data where others may pass"
            )
    os.umask(0o077)
    os.chdir(wish["cwd"])
    os.execv(wish["command"][0], wish["command"])  # noqa: S606 - the caller's fixed command


def first_closed(folder: Path, uid: int) -> Path | None:
    """Return the topmost ancestor of a folder that the account may not traverse."""
    for parent in reversed(folder.parents):
        found = parent.stat()
        if not found.st_mode & (stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH):
            return parent
    return None


def may_mount() -> bool:
    """Give this process its own mount namespace if allowed; return whether it has one."""
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        return False
    mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
    return True


def cover(closed: Iterable[Path], folders: Iterable[Path]) -> None:
    """Cover folders by empty ones that contain only the needed folders."""
    handles = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in folders}
    closed = list(closed)
    os.umask(0o022)
    for parent in closed:
        mount("none", parent, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=1m")
    for folder, handle in handles.items():
        if any(folder.is_relative_to(parent) for parent in closed):
            folder.mkdir(parents=True, exist_ok=True)
            mount(f"/proc/self/fd/{handle}", folder, "", MS_BIND)
    for parent in closed:
        mount("none", parent, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system; ``OSError`` if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), os.fsencode(target), kind.encode())
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


if __name__ == "__main__":
    main()

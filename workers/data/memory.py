"""How much memory a run may use for weights and records, and what it says that it needs.

The interpreter and its libraries, some 500 MB, come on top. So do a network's intermediate results:
they depend on the operator's code and on the batch size alone.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from app.domain.errors import RunFailedError

VARIABLE: Final = "EXPUNGE_WORKER_MEMORY"
_SHARE_OF_FREE: Final = 0.75
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")
_LIBC: Final = ctypes.CDLL(None)
_TRIM: Final = getattr(_LIBC, "malloc_trim", None)
_TUNE: Final = getattr(_LIBC, "mallopt", None)
# glibc's names, and the most that it takes for the second.
_TRIM_THRESHOLD: Final = (-1, 128 << 20)
_MMAP_THRESHOLD: Final = (-3, 32 << 20)
_MMAP_SOONER: Final = (-3, 256 << 10)


@dataclass(frozen=True)
class Needs:
    """What a run needs, in bytes by what it is for.

    Attributes:
        parts: none is negative.
    """

    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of it together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """Return the sum and its parts in words, without those that are zero."""
        parts = ", ".join(f"{name} {in_words(size)}" for name, size in self.parts.items() if size)
        return f"{in_words(self.total)} ({parts})" if parts else in_words(self.total)

    def refuse(self, allowed: int, *, why: str, advice: str) -> NoReturn:
        """Refuse a run that does not fit, with both numbers.

        Raises:
            RunFailedError: always.
        """
        raise RunFailedError(
            f"{why} needs {self}, and this worker may use {in_words(allowed)}: {advice}, or set "
            f"{VARIABLE} to more"
        )


def allowance(setting: int | None) -> int:
    """Return how many bytes a run may use: the setting, or most of what is free now."""
    return int(_SHARE_OF_FREE * free_bytes()) if setting is None else setting


def free_bytes(*, cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Return the bytes that are free on this machine and within this process's control group."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text(encoding="utf-8").strip()
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
        stat = dict(
            line.split()
            for line in (cgroup / "memory.stat").read_text(encoding="utf-8").splitlines()
        )
        used -= int(stat["file"]) - int(stat.get("shmem", 0))  # the kernel gives its cache back
    except (OSError, ValueError, KeyError):
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))


def keep_freed() -> None:
    """Let this process and its children keep some of what a step frees, for the next step.

    Else every step's tensors are new pages, which the kernel clears: that cost a head's step of
    DP-SGD half of its time.
    """
    if _TUNE is not None:
        for parameter, size in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            _TUNE(parameter, size)


def give_back() -> None:
    """Return what was freed to the system; glibc would keep it for later."""
    if _TRIM is not None:
        _TRIM(0)


def free_at_once() -> None:
    """Let this process give back at once what it frees in large pieces; ``keep_freed`` undone.

    Blocks' weights come and go in every step of a divided run, and would leave gaps.
    """
    if _TUNE is not None:
        _TUNE(*_MMAP_SOONER)


def in_words(size: int) -> str:
    """Return a number of bytes as people write it, rounded up so that it is never understated."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2)):
        if size >= factor:
            return f"{-(-size * 10 // factor) / 10:g} {unit}"
    return f"{-(-size // 1024)} KiB"

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
from app.domain.plan import Plan, TrainingKind
from app.domain.schema import InputSchema
from app.planning.mechanisms.catalogue import mechanism_of
from app.planning.mechanisms.sufficient_statistics import SufficientStatistics
from app.registry.datasets.repository import Stock
from workers.training.evaluate import EVALUATION_BATCH

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


def free_bytes() -> int:
    """Return the bytes that are free on this machine and within this process's control group."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="utf-8").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        stat = dict(
            line.split()
            for line in (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
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


_BYTES_PER_WEIGHT: Final = 48
"""Parameters, gradients and moments, their best values, a float64 position with its noise, and the
file that is published; descent has fewer of them and float64."""
_BYTES_DIVIDED: Final = 40
"""How many of them are divided among processes: all but a network as it is built or published, and
the file that it starts from."""
_BYTES_PER_ENTRY: Final = 256
"""A record's number, key, batch and places, while they are chosen from the ledger."""
_BYTES_PER_PREDICTION: Final = 64
_COPIES: Final = 3
"""Of records in memory: shards as they were read, those chosen of them, and what reading took."""
_FLOAT64: Final = 8
_SHARD: Final = "one shard"
_MOMENTS: Final = 4
_LEAST_BATCHES: Final = 4
_WINDOW_SHARE: Final = 6
"""Each of two windows takes this part of the allowance."""


@dataclass(frozen=True)
class Footprint:
    """What decides how much memory a run needs, known before it reads a record.

    Whether records are streamed, and in windows of how many, decides which batches a noisy phase
    takes. So both follow from the records that are not forgotten and from public sizes alone:
    neither from shards, nor from forgotten records that they still hold (docs/guarantees.md,
    section 1).

    Attributes:
        plan: what the run does.
        schema: of what its network reads.
        record_bytes: of one record's tensors.
        dimension: how many weights are trained.
        batch_size: of the steps.
        stock: what the dataset holds, forgotten records included.
        remembered: how many of its records are not forgotten.
        devices: how many divide the weights; what is needed is what each of them needs at most.
    """

    plan: Plan
    schema: InputSchema
    record_bytes: int
    dimension: int
    batch_size: int
    stock: Stock
    remembered: int
    devices: int = 1

    @property
    def sums(self) -> bool:
        """Whether all that is needed of records to learn from is their sums."""
        return isinstance(mechanism_of(self.plan), SufficientStatistics)

    def in_memory(self) -> Needs:
        """Return what a run needs that holds all records."""
        rows = self.stock.rows
        return Needs({**self._always(rows, evaluated=rows), "records": self._records(rows)})

    def of_member(self, rows: int, *, measured: int) -> Needs:
        """Return what a run needs of an ensemble whose largest member has so many records.

        Those to be measured on are in memory besides.
        """
        return Needs(
            {
                **self._always(self.stock.rows, evaluated=measured),
                "records": self._records(rows),
                "records to evaluate on": measured * self.record_bytes,
            }
        )

    def fits(self, allowed: int) -> bool:
        """Return whether to hold all records: three quarters of the allowance must do.

        The rest is for what does not decide it: a shard while it is read, and forgotten records.
        """
        rows = self.remembered
        always = self._always(rows, evaluated=rows) | {_SHARD: 0}
        return sum(always.values()) + self._records(rows) <= allowed // 4 * 3

    def streamed(self, *, held: int, evaluated: int) -> Needs:
        """Return what a run needs that reads records as it needs them, without its windows.

        Args:
            held: bytes of records that stay in memory.
            evaluated: records to evaluate on.
        """
        always = self._always(self.stock.rows, evaluated=evaluated)
        return Needs({**always, "records to evaluate on": held})

    def window(self, allowed: int) -> int:
        """Return how many records a window has: at least a few batches' worth."""
        least = min(self.remembered, _LEAST_BATCHES * max(2, self.batch_size))
        return max(least, allowed // _WINDOW_SHARE // self.record_bytes)

    def windows(self, allowed: int) -> int:
        """Return the bytes of two windows, one in use and one that is being read."""
        return 2 * min(self.remembered, self.window(allowed)) * self.record_bytes

    def _records(self, rows: int) -> int:
        if self.sums:
            return rows * self.record_bytes
        copies = _COPIES + (self.plan.training is TrainingKind.DESCENT)  # one in batches' order
        return copies * rows * self.record_bytes

    def _always(self, rows: int, *, evaluated: int) -> dict[str, int]:
        stock = self.stock
        of_prediction = _BYTES_PER_PREDICTION + _FLOAT64 * self.schema.classes
        exact = self.plan.training is TrainingKind.EXACT
        size = self.schema.size
        batch = min(rows, max(self.batch_size, EVALUATION_BATCH))
        whole = (_BYTES_PER_WEIGHT - _BYTES_DIVIDED) * self.dimension
        return {
            "weights": whole + -(-_BYTES_DIVIDED * self.dimension // self.devices),
            "the ledger's entries": _BYTES_PER_ENTRY * rows,
            _SHARD: 2 * (stock.most_bytes + stock.most_rows * self.record_bytes),
            "a batch": batch * (self.record_bytes + _FLOAT64 * size),
            "predictions": of_prediction * evaluated,
            "sums": _MOMENTS * _FLOAT64 * size * size if self.sums else 0,
            "all features in float64": _FLOAT64 * (size + 2) * rows
            if exact and not self.sums
            else 0,
        }

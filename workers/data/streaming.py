"""Records that do not fit into memory: read from their shards in windows, as they are needed.

A window is what is in memory at once; a thread reads the next one meanwhile. Its rows are in the
order in which they are used, so batches are slices of it.

Random order: the records, in the order of their sequence numbers, are cut into blocks of equal
size. An epoch draws an order of the blocks, puts a few of them into each window, and shuffles it.
Both draws are of the operating system's entropy, and depend on the number of records and on public
sizes alone, not on the shards: which records share a batch says nothing of what else a shard held
(docs/guarantees.md, section 1).

A shard is read again for each window that needs a record of it, as it is stored by then: an erasure
may have rewritten it, but it takes no record away that this run learns from.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, repeat
from typing import Final, Generic, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from app.domain.errors import ExpungeError, GoneError, RunFailedError
from workers.data.memory import give_back
from workers.data.shards import Read, Selected
from workers.leases.outages import outlast_outages
from workers.seal.scrubbing import scrubbed
from workers.training.examples import Examples, Order, Records, batch_sizes, require_some
from workers.training.forms import InputForm
from workers.training.part import Part, places_of
from workers.training.tasks.task import Batch, joined

Item = TypeVar("Item")
Check = Callable[[], None]


# A failure of the thread is raised where its item would have come, without the thread's frames,
# which hold records. The thread ends with ``close``.
class _StoppedError(ExpungeError):
    """The thread's items are not wanted any more."""


class ReadAhead(Generic[Item]):
    """An iterator over what ``make`` yields in a thread of its own; nothing of it is None.

    Args:
        make: is given a function that raises when the thread is to end, and calls it between the
            parts of its work.
    """

    def __init__(self, make: Callable[[Check], Iterator[Item]]) -> None:
        self._stopped = threading.Event()
        self._items = make(self._check)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._coming: Future[Item | None] = self._thread.submit(self._made)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """Return the next item; the one before must be given up by now.

        Raises:
            ExpungeError: raised by ``make`` on purpose.
            RuntimeError: anything else that it raised.
        """
        if self._stopped.is_set():
            raise StopIteration
        failure = self._coming.exception()
        item = self._coming.result() if failure is None else None
        if item is None:
            self.close()
            raise StopIteration if failure is None else failure.with_traceback(None)
        self._coming = self._thread.submit(self._made)
        return item

    def close(self) -> None:
        """End the thread and drop what it has made; safe to repeat."""
        self._stopped.set()
        self._thread.shutdown(cancel_futures=True)
        self._coming = Future()

    def _made(self) -> Item | None:
        self._check()
        return scrubbed("reading records", lambda: next(self._items, None), on_failure=lambda: None)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError


BLOCKS_IN_WINDOW: Final = 8


Holdings = dict[str, NDArray[np.int64]]
"""By shard, the places of what it holds of some records, in the order of sequence numbers."""


class Survey:
    """What shards hold of some groups of records.

    Args:
        groups: sequence numbers, int64 [n] each, ascending.
    """

    def __init__(self, groups: Sequence[NDArray[np.int64]]) -> None:
        self._groups = groups
        self._times = [np.zeros(len(group), dtype=np.int64) for group in groups]
        self._found: list[Holdings] = [{} for _ in groups]

    def take(self, shard_id: str, part: Part) -> None:
        """Note what a shard holds."""
        for group, times, found in zip(self._groups, self._times, self._found, strict=True):
            _, places = places_of(part.seqs, group)
            np.add.at(times, places, 1)
            if len(places):
                found[shard_id] = places

    def holdings(self) -> list[Holdings]:
        """Return which shards hold the records of each group.

        Raises:
            RunFailedError: a record is in two shards.
            GoneError: a record is in none.
        """
        if any((times > 1).any() for times in self._times):
            raise RunFailedError("a record of the model is stored twice")
        if any((times == 0).any() for times in self._times):
            raise GoneError("a record of the model is in no shard")
        return self._found


class Streamed(Records):
    """Some of a dataset's records, read as they are needed.

    Args:
        seqs: their sequence numbers, int64 [n], ascending.
        form: what they look like.
        holdings: which shards hold them, all of them together each record once.
        read: returns a shard as it is now.
        window: how many records are in memory at once; there are two windows at a time.
        check: called between shards, in the thread that reads; its exceptions end the reading.
        all_there: whether a record that is missing by now is an error; else it is passed over.
    """

    def __init__(
        self,
        seqs: NDArray[np.int64],
        form: InputForm,
        holdings: Holdings,
        read: Read,
        *,
        window: int,
        check: Check,
        all_there: bool = True,
    ) -> None:
        self._seqs = seqs
        self.form = form
        self._holdings = holdings
        self._read = read
        self._window = max(1, window)
        self._check = check
        self._all_there = all_there
        self._reading: WeakSet[ReadAhead[Examples]] = WeakSet()

    def __len__(self) -> int:
        return len(self._seqs)

    def __repr__(self) -> str:
        return f"<Streamed: {len(self)} records, {self._window} at a time>"

    def epoch(
        self, batch_size: int, *, device: torch.device, random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield every record once, in a random order (``Records.epoch``)."""
        require_some(self)
        orders = self._shuffled(random or np.random.default_rng())
        return self._batches(orders, batch_sizes(len(self), batch_size), device)

    def forever(
        self, batch_size: int, *, device: torch.device, random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """Yield epochs without end; what comes next is read across their borders."""
        require_some(self)
        random = random or np.random.default_rng()
        orders = chain.from_iterable(self._shuffled(random) for _ in repeat(None))
        sizes = batch_sizes(len(self), batch_size)
        return self._batches(orders, chain.from_iterable(repeat(sizes)), device)

    def in_order(self, batch_size: int, *, device: torch.device) -> Iterator[Batch]:
        """Yield every record once, in the order of their sequence numbers."""
        sizes = [min(batch_size, len(self) - at) for at in range(0, len(self), batch_size)]
        return self._batches(self._windows(np.arange(len(self))), sizes, device)

    def cycle(
        self, order: Order, sizes: Sequence[int], first: int, *, device: torch.device
    ) -> Iterator[Batch]:
        """Yield pieces of the records at ``order``, read window by window (``Records.cycle``)."""
        first %= len(sizes)
        start = sum(sizes[:first])
        turned = np.concatenate([order[start:], order[:start]])
        again = repeat(None) if len(turned) else ()  # without records, all pieces are empty
        rounds = (self._windows(turned) for _ in again)
        endless = islice(chain.from_iterable(repeat(sizes)), first, None)
        return self._batches(chain.from_iterable(rounds), endless, device)

    def close(self) -> None:
        """End what is still being read; safe to repeat."""
        for reading in list(self._reading):
            reading.close()

    def _shuffled(self, random: np.random.Generator) -> Iterator[Order]:
        """Yield the places of each window of an epoch, in random order."""
        size = max(1, self._window // BLOCKS_IN_WINDOW)
        starts = random.permutation(np.arange(0, len(self), size))
        at_once = max(1, self._window // size)
        for first in range(0, len(starts), at_once):
            chosen = starts[first : first + at_once]
            blocks = [np.arange(at, min(at + size, len(self))) for at in chosen]
            yield random.permutation(np.concatenate(blocks))

    def _windows(self, order: Order) -> Iterator[Order]:
        for start in range(0, len(order), self._window):
            yield order[start : start + self._window]

    def _batches(
        self, orders: Iterable[Order], sizes: Iterable[int], device: torch.device
    ) -> Iterator[Batch]:
        """Yield batches of these sizes of the records in this order."""

        def windows(stopped: Check) -> Iterator[Examples]:
            def check() -> None:
                stopped()
                self._check()

            return (self._filled(order, check) for order in orders)

        reading = ReadAhead(windows)
        self._reading.add(reading)
        try:
            yield from _sliced(reading, sizes, device, blank=self.like(0))
        finally:
            reading.close()

    def _filled(self, order: Order, check: Check) -> Examples:
        """Return the records at these places, in this order."""
        give_back()
        row_of = np.full(len(self), -1, dtype=np.int64)
        row_of[order] = np.arange(len(order))
        window = Selected(self._seqs[order], self.form)
        wanted = np.sort(self._seqs[order])
        for shard_id, places in self._holdings.items():
            if (row_of[places] >= 0).any():
                window.take(outlast_outages(check, partial(self._read, shard_id, wanted)))
                check()
        if self._all_there and not window.is_complete:
            raise GoneError("a record that the run learns from is not in its shard any more")
        return window.examples()


def _sliced(
    windows: Iterator[Examples], sizes: Iterable[int], device: torch.device, *, blank: Examples
) -> Iterator[Batch]:
    """Cut windows into batches; a batch may begin in one and end in the next."""
    window, at = blank, 0
    for size in sizes:
        if at + size <= len(window):
            yield window.rows(at, at + size, device=device)
            at += size
            continue
        begun: list[Batch] = []
        missing = size
        while missing > len(window) - at:
            if at < len(window):
                rest = window.rows(at, len(window), device=device)
                begun.append({name: each.clone() for name, each in rest.items()})
                missing -= len(window) - at
                del rest
            window, at = blank, 0  # what was used up is not in memory while the next is fetched
            following = next(windows, None)
            if following is None:
                break
            window = following
            del following
        else:
            begun.append(window.rows(at, at + missing, device=device))
            at += missing
        if begun:
            batch = joined(begun) if len(begun) > 1 else begun[0]
            begun.clear()
            yield batch
            del batch

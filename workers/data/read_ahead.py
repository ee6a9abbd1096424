"""Items that a thread makes while the one before is used: one ahead, never two.

A failure of the thread is raised where its item would have come, without the thread's frames, which
hold records. The thread ends with ``close``.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from app.domain.errors import ExpungeError
from workers.seal.scrubbing import scrubbed

Item = TypeVar("Item")
Check = Callable[[], None]


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

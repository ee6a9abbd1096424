"""Items that a thread makes while the one before is used: one ahead, never two.

A failure of the thread is raised where its item would have come, without the thread's frames, which
hold records. The thread ends with ``close``, and never waits for its consumer then.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from app.domain.errors import ExpungeError
from workers.seal.scrubbing import scrubbed

Item = TypeVar("Item")
Check = Callable[[], None]


class _StoppedError(ExpungeError):
    """The thread's items are not wanted any more."""


class _End:
    """Comes after the last item."""


class ReadAhead(Generic[Item]):
    """An iterator over what ``make`` yields in a thread of its own.

    Args:
        make: called in the thread, with a function that raises when the thread is to end: it calls
            that function between the parts of its work.
    """

    def __init__(self, make: Callable[[Check], Iterator[Item]]) -> None:
        self._make = make
        self._made: queue.SimpleQueue[Item | BaseException | _End] = queue.SimpleQueue()
        self._wanted = threading.Semaphore(1)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read-ahead", daemon=True)
        self._thread.start()

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
        item = self._made.get()
        if isinstance(item, _End):
            self.close()
            raise StopIteration
        if isinstance(item, BaseException):
            self.close()
            raise item
        self._wanted.release()
        return item

    def close(self) -> None:
        """End the thread and drop what it has made; safe to repeat."""
        self._stopped.set()
        self._wanted.release()
        self._thread.join()
        while not self._made.empty():
            self._made.get()

    def _work(self) -> None:
        try:
            scrubbed("reading records", self._make_all, on_failure=lambda: None)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the item is waited for
            self._made.put(error.with_traceback(None))
        else:
            self._made.put(_End())

    def _make_all(self) -> None:
        items = self._make(self._check)
        while True:
            self._wanted.acquire()
            self._check()
            try:
                item = next(items)
            except StopIteration:
                return
            self._made.put(item)
            del item  # the thread must not keep what the caller has given up

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

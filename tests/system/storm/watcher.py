"""Somebody who downloads every model again and again, verifies it, and remembers what it held."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from sqlalchemy.exc import OperationalError

from app.client import ApiError, ExpungeClient
from app.domain.errors import DownloadError, GoneError
from tests.support.traces import Traces
from tests.system.storm.callers import Book
from tests.system.storm.scene import MODELS

PAUSE_S = 2.0
_AWAY = httpx.TransportError, ApiError, DownloadError, OperationalError, GoneError


class Watcher:
    """A thread that downloads until it is told to stop.

    What is not there at a moment, because a server is away or a version was just replaced, is
    asked for later. A certificate that does not hold is a problem for the book.
    """

    def __init__(
        self, connect: Callable[[], ExpungeClient], book: Book, traces: Traces, directory: Path
    ) -> None:
        self._connect, self._book, self._traces = connect, book, traces
        self._directory = directory
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="watcher")
        self.downloads = 0

    def start(self) -> None:
        """Begin."""
        self._directory.mkdir(exist_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until it has."""
        self._stopped.set()
        self._thread.join()

    def look(self, client: ExpungeClient) -> None:
        """Download and verify every model once."""
        trusted = client.trusted_keys()
        for name in MODELS:
            weights = client.download(name, self._directory, trusted=trusted).weights
            self._traces.published(name, weights.read_bytes())
            self.downloads += 1

    def _work(self) -> None:
        try:
            with self._connect() as client:
                while not self._stopped.wait(PAUSE_S):
                    with suppress(*_AWAY):
                        self.look(client)
        except Exception as error:  # noqa: BLE001 - what a thread raises nobody would see
            self._book.problems.append(f"watcher: {type(error).__name__}: {error}")

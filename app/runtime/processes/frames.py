"""Processes that are confined and sent frames: a length of eight bytes, then that many bytes."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Final, Self

from app.runtime.processes import starting

LONGEST_S: Final = 300.0
"""How long what ``timed`` times may take."""

_LENGTH_BYTES: Final = 8


def send(file: IO[bytes], content: Any) -> None:  # noqa: ANN401 - a buffer
    """Write a frame."""
    file.write(len(content).to_bytes(_LENGTH_BYTES, "big"))
    file.write(content)
    file.flush()


def receive(file: IO[bytes], *, most: int) -> bytearray:
    """Read a frame of at most ``most`` bytes.

    Raises:
        EOFError: the input has ended, or the frame is too long.
    """
    length = int.from_bytes(_exactly(file, _LENGTH_BYTES), "big")
    if length > most:
        raise EOFError
    return _exactly(file, length)


def _exactly(file: IO[bytes], count: int) -> bytearray:
    content = bytearray(count)
    with memoryview(content) as view:
        filled = 0
        while filled < count:
            read = file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not read:
                raise EOFError
            filled += read
    return content


class FrameProcess:
    """A confined process; its ``orders`` are frames, and so are its ``answers``."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = starting.start(module, *arguments, pipe=subprocess.PIPE)
        self.orders: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self.answers: IO[bytes] = self._process.stdout  # type: ignore[assignment]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Kill it if this takes more than ``LONGEST_S``."""
        alarm = threading.Timer(LONGEST_S, self._process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()

"""A process that may have no more threads for a while, as where its limit is reached."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def none_can_be_started() -> Iterator[None]:
    """Let every start of a thread fail until the block ends."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        yield

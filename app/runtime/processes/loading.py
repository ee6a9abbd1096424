"""Modules are loaded without collecting garbage: a quarter of a worker's start was that."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage until the block ends, and never look again at what is there by then.

    What modules define stays for as long as their process, and every collection would pass over it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()

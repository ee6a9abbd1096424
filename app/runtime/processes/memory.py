"""Gives memory back to the system that was needed for a moment, such as for large bodies.

glibc has an arena for each of many threads, and raises what it counts as large with each large
block that is freed. Both keep freed memory for the process, many times what it needs otherwise.
"""

import ctypes
import sys
from typing import Final

import pyarrow as pa

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 128 * 1024
_ARENAS: Final = 2


def give_back_large() -> None:
    """Have large blocks given back once they are freed; call before there are threads."""
    pa.set_memory_pool(pa.system_memory_pool())
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)

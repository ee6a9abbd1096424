"""What makes a computation repeatable on one machine: one thread, on the CPU, in float64.

Sums of floats depend on their order, and libraries choose the order by the number of threads. Sums
of whole numbers below 2^53 do not: they may use all threads.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version

import numpy as np
import scipy.linalg  # noqa: F401 - so that its BLAS is found, too
import torch
from threadpoolctl import ThreadpoolController, threadpool_info


def kernels(libraries: Iterable[str] = ()) -> str:
    """Return which BLAS and libraries compute here: others, or other processors, round differently.

    ``libraries`` are packages that are installed.
    """
    found = {
        f"{each['internal_api']} {each['version']} {each.get('architecture', '')}".strip()
        for each in threadpool_info()
        if each["user_api"] == "blas"
    }
    blas = sorted(found) or ["unknown BLAS"]
    named = [*blas, *(f"{each} {version(each)}" for each in libraries)]
    return f"float64 in one thread: {', '.join(named)}"


@contextmanager
def repeatable() -> Iterator[None]:
    """Compute in one thread until the block ends; NumPy's warnings are silent there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _libraries().limit(limits=1), np.errstate(all="ignore"):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _libraries() -> ThreadpoolController:
    """Return those that compute in threads; to look for them takes as long as a small head."""
    return ThreadpoolController()

"""How tests wait for what must happen, on a machine however slow or busy."""

import time
from collections.abc import Callable
from typing import TypeVar

import httpx
import psutil

from app.client import ApiError

PATIENCE_S = 20
Result = TypeVar("Result")


def until(condition: Callable[[], Result], timeout_s: float = PATIENCE_S) -> Result:
    """Wait for a true answer and return it; what hints at a service being away is no answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        problem: Exception | None = None
        try:
            if answer := condition():
                return answer
        except (httpx.TransportError, StopIteration, psutil.Error, AssertionError) as error:
            problem = error
        except ApiError as error:
            if error.status < 500:
                raise
            problem = error
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time") from problem
        time.sleep(0.05)

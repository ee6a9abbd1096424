"""When and how often a call over HTTP is tried again.

The plan, for one call:

1. send it
2. a broken or refused connection, or an answer that asks to wait: wait, then go to 1
3. any other answer, or the last attempt's: that is the outcome

The pause is random up to a bound that doubles with each attempt, so that callers that failed
together do not retry together. The pause follows an answer's ``Retry-After``; if that is longer
than ``longest_s``, the answer is the outcome at once.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

_PATIENCE = frozenset({429, 502, 503, 504})
_IN_FLIGHT = 409  # retried only if it says how long to wait
_NEVER_SENT_RIGHT = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)


@dataclass(frozen=True)
class Retry:
    """How a caller retries.

    Attributes:
        attempts: how often a call is sent at most; 1 retries nothing.
        base_s: the bound of the first pause; it doubles with each attempt.
        longest_s: no pause is longer, and a longer ``Retry-After`` is not waited for.
        sleep: for tests.
    """

    attempts: int = 5
    base_s: float = 0.25
    longest_s: float = 20.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """Send until there is an outcome.

        Raises:
            httpx.TransportError: the last attempt's connection failed.
        """
        for attempt in range(1, self.attempts):
            try:
                answer = send()
            except _NEVER_SENT_RIGHT:
                raise
            except httpx.TransportError:
                self.sleep(self._pause_s(attempt))
                continue
            asked_s = retry_after_s(answer)
            if not asks_for_patience(answer) or (asked_s or 0.0) > self.longest_s:
                return answer
            self.sleep(max(asked_s or 0.0, self._pause_s(attempt)))
        return send()

    def _pause_s(self, attempt: int) -> float:
        bound_s = min(self.longest_s, self.base_s * 2 ** (attempt - 1))
        return random.uniform(0.0, bound_s)  # noqa: S311 - it only spreads callers


def retry_after_s(answer: httpx.Response) -> float | None:
    """Return the answer's ``Retry-After`` in seconds from now, if it has one that can be read."""
    return pause_s(answer.headers.get("Retry-After", ""))


def pause_s(header: str) -> float | None:
    """Return the seconds that a ``Retry-After`` asks for; None if it cannot be read."""
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def asks_for_patience(answer: httpx.Response) -> bool:
    """Return whether the same call may succeed a little later."""
    if answer.status_code == _IN_FLIGHT:
        return "Retry-After" in answer.headers
    return answer.status_code in _PATIENCE

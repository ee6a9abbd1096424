"""When a failed callback is retried."""

import random

DELAYS_S = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Seconds from each failed attempt to the next: ten attempts over three days.

Source: Standard Webhooks 1.0.0, "Deliverability and reliability".
"""

_JITTER = 0.2
_MAX_RETRY_AFTER_S = 86400.0
_random = random.SystemRandom()


def delay_s(attempts: int, *, retry_after_s: float = 0.0) -> float | None:
    """Return the delay after ``attempts`` failed attempts; None after the last.

    Up to a fifth is added at random, so that events that failed together are spread. A receiver
    that asks for a longer pause gets it, up to a day.
    """
    if attempts > len(DELAYS_S):
        return None
    delay = DELAYS_S[attempts - 1] * _random.uniform(1.0, 1.0 + _JITTER)
    return max(delay, min(retry_after_s, _MAX_RETRY_AFTER_S))

"""Counting calls and failures, in Redis for all processes of the API together.

While Redis is unreachable each process counts for itself, so limits still hold, but more loosely.
Counters are named by keyed hashes: Redis learns no address and no caller.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter
from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from app.access.pseudonyms import Pseudonyms
from app.domain.errors import TooManyRequestsError
from app.runtime.settings import Settings

_log = logging.getLogger("expunge.limits")

_REDIS_TIMEOUT_S = 0.25
_AWAY_S = 5.0
_PREFIX = "expunge:limits"
_BUCKET_BYTES = 2
"""So there are 65,536 counters of failures at most, however many addresses an attacker has."""


@dataclass(frozen=True)
class Quota:
    """What is left of a limit: ``remaining`` of ``limit`` calls, for ``reset_s`` more seconds."""

    name: str
    limit: int
    window_s: int
    remaining: int
    reset_s: int


class _Shared(RedisStorage):
    """Counters in a Redis that runs no scripts."""

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count in a window that begins with its first call."""
        name = self.prefixed_key(key)
        with self.storage.pipeline(transaction=True) as together:
            together.set(name, 0, ex=expiry, nx=True)
            together.incrby(name, amount)
            return int(together.execute()[1])


class Counters:
    """Fixed windows in Redis, or in this process while Redis is away.

    The pseudonyms' key keeps other services in the same Redis apart.
    """

    def __init__(self, redis_url: str, pseudonyms: Pseudonyms) -> None:
        self._pseudonyms = pseudonyms
        pool = ConnectionPool.from_url(
            redis_url,
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        shared = _Shared("redis://", connection_pool=pool, key_prefix=_PREFIX, wrap_exceptions=True)
        self._shared = FixedWindowRateLimiter(shared)
        self._own = FixedWindowRateLimiter(MemoryStorage())
        self._away_until = -math.inf

    def name_of(self, what: str, who: str) -> str:
        """Return the name under which a caller is counted; no two callers share one."""
        return self._pseudonyms.counted(what, who)[:16].hex()

    def bucket_of(self, what: str, who: str) -> str:
        """Return one of few names; callers may share it by chance, but cannot choose to."""
        return self._pseudonyms.counted(what, who)[:_BUCKET_BYTES].hex()

    def ask(
        self, name: str, item: RateLimitItem, who: str, *, count: bool = True
    ) -> tuple[bool, Quota]:
        """Return whether one more is within the limit, and what is left; ``count`` counts it."""
        counted = f"{name}:{who}"
        if time.monotonic() >= self._away_until:
            try:
                return _answer(self._shared, name, item, counted, count=count)
            except StorageError:
                _log.warning("Redis does not answer: this process counts calls for itself")
                self._away_until = time.monotonic() + _AWAY_S
        return _answer(self._own, name, item, counted, count=count)


class CallLimits:
    """How often one caller may call: in a minute, and in a second."""

    def __init__(self, counters: Counters, *, per_minute: int, burst: int) -> None:
        self._counters = counters
        self._items: list[tuple[str, RateLimitItem]] = []
        if burst:
            self._items.append(("burst", RateLimitItemPerSecond(burst)))
        if per_minute:
            self._items.append(("minute", RateLimitItemPerMinute(per_minute)))

    def __bool__(self) -> bool:
        return bool(self._items)

    def take(self, caller_id: str) -> tuple[bool, Sequence[Quota]]:
        """Count a call; return whether it may be made, and what is left of each limit."""
        quotas: list[Quota] = []
        who = self._counters.name_of("calls", caller_id) if self._items else ""
        for name, item in self._items:
            allowed, quota = self._counters.ask(name, item, who)
            quotas.append(quota)
            if not allowed:
                return False, quotas
        return True, quotas


class FailureLimit:
    """How often one address may fail; an IPv6 network, which one person has, counts as one."""

    def __init__(self, counters: Counters, *, per_minute: int) -> None:
        self._counters = counters
        self._item = RateLimitItemPerMinute(per_minute) if per_minute else None

    def check(self, address: str) -> None:
        """Raise ``TooManyRequestsError`` if the address has failed too often."""
        if self._item is None:
            return
        allowed, quota = self._counters.ask("failures", self._item, self._who(address), count=False)
        if not allowed:
            raise TooManyRequestsError(
                "too many failed attempts from this address", retry_after_s=quota.reset_s
            )

    def note(self, address: str) -> None:
        """Count a failure."""
        if self._item is not None:
            self._counters.ask("failures", self._item, self._who(address))

    def _who(self, address: str) -> str:
        return self._counters.bucket_of("failures", network_of(address))


def limits_of(settings: Settings, counters: Counters) -> tuple[CallLimits, FailureLimit]:
    """Return the limits that the settings ask for."""
    calls = CallLimits(
        counters, per_minute=settings.requests_per_minute, burst=settings.requests_burst
    )
    return calls, FailureLimit(counters, per_minute=settings.failed_attempts_per_minute)


def _answer(
    limiter: FixedWindowRateLimiter, name: str, item: RateLimitItem, who: str, *, count: bool
) -> tuple[bool, Quota]:
    allowed = limiter.hit(item, who) if count else limiter.test(item, who)
    reset_at, remaining = limiter.get_window_stats(item, who)
    window_s = item.get_expiry()
    reset_s = min(window_s, max(1, math.ceil(reset_at - time.time())))
    return allowed, Quota(name, item.amount, window_s, remaining, reset_s)


def network_of(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 network of /64."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or IPv6Network((int(ip), 64), strict=False))

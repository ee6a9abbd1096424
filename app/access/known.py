"""Callers whose keys were just looked up, so that not every call asks the ledger."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from app.access import api_keys
from app.access.api_keys import Caller, KeyHolder

LIFETIME_S = 1.0
_MOST = 10_000


@dataclass
class _Entry:
    caller: Caller
    renew_at: float
    until: float
    revocations: int


class KnownCallers:
    """Remembers, for a second, to whom a key belongs; safe between threads.

    Whatever this process revokes ends all entries at once. What another process revokes is let in
    for as long as an entry lasts. No entry outlasts its key.
    """

    def __init__(self, *, lifetime_s: float = LIFETIME_S, most: int = _MOST) -> None:
        self._lifetime_s = lifetime_s
        self._most = most
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = Lock()

    def find(self, digest: bytes) -> Caller | None:
        """Return the caller whose key has this digest, if it was looked up just now."""
        entry = self._entries.get(digest)
        if entry is None or time.monotonic() >= entry.until:
            return None
        return entry.caller if entry.revocations == api_keys.revocations() else None

    def is_due(self, digest: bytes) -> bool:
        """Return True once per entry, when half of its time is over and it should be renewed.

        The caller that then looks the key up again saves later callers the wait.
        """
        entry = self._entries.get(digest)
        if entry is None or time.monotonic() < entry.renew_at:
            return False
        with self._lock:
            renew_at, entry.renew_at = entry.renew_at, math.inf
        return renew_at < math.inf

    def look_up(self, digest: bytes, ask: Callable[[], KeyHolder]) -> Caller:
        """Return whom ``ask`` finds, and remember it unless something was revoked meanwhile."""
        began, revocations = time.monotonic(), api_keys.revocations()
        holder = ask()
        lasts_s = self._lifetime_s if holder.lasts_s is None else holder.lasts_s
        lasts_s = min(self._lifetime_s, lasts_s)
        entry = _Entry(holder.caller, began + lasts_s / 2, began + lasts_s, revocations)
        with self._lock:
            self._entries[digest] = entry
            self._entries.move_to_end(digest)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return holder.caller

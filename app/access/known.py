"""Credentials that were accepted: for a second they need no look-up, and after it no delay."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from app.access import api_keys
from app.access.api_keys import Caller, KeyHolder

LIFETIME_S = 1.0
_MOST = 10_000


@dataclass(frozen=True)
class _Entry:
    caller: Caller
    until: float
    revocations: int


class KnownCallers:
    """Remembers to whom credentials belong, by their digests; safe between threads.

    A revocation by this process ends all entries at once. One by another process counts from the
    end of an entry. No entry outlasts its key. An entry that has ended grants
    nothing: it only keeps failures of others behind the same address from delaying this caller.
    """

    def __init__(self, *, lifetime_s: float = LIFETIME_S, most: int = _MOST) -> None:
        self._lifetime_s = lifetime_s
        self._most = most
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._entries

    def find(self, digest: bytes) -> Caller | None:
        """Return the caller whose credentials have this digest, if they were looked up just now."""
        entry = self._entries.get(digest)
        if entry is None or time.monotonic() >= entry.until:
            return None
        return entry.caller if entry.revocations == api_keys.revocations() else None

    def look_up(self, digest: bytes, ask: Callable[[], KeyHolder]) -> Caller:
        """Return whom ``ask`` finds, and remember it unless something was revoked meanwhile."""
        began, revocations = time.monotonic(), api_keys.revocations()
        holder = ask()
        lasts_s = self._lifetime_s if holder.lasts_s is None else holder.lasts_s
        until = began + min(self._lifetime_s, lasts_s)
        with self._lock:
            self._entries[digest] = _Entry(holder.caller, until, revocations)
            self._entries.move_to_end(digest)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return holder.caller

    def discard(self, digest: bytes) -> None:
        """Forget credentials that are no longer accepted."""
        with self._lock:
            self._entries.pop(digest, None)

"""Which credentials were valid recently."""

from collections import OrderedDict
from threading import Lock

_MOST = 10_000


class RecentlyAccepted:
    """Remembers the newest digests of credentials that were accepted; safe between threads.

    It grants nothing: it only keeps failures of others behind the same address from delaying these
    callers.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._digests: OrderedDict[bytes, None] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, digest: bytes) -> bool:
        with self._lock:
            return digest in self._digests

    def add(self, digest: bytes) -> None:
        """Remember one; if full, the one that was not seen for longest is removed."""
        with self._lock:
            self._digests[digest] = None
            self._digests.move_to_end(digest)
            if len(self._digests) > self._most:
                self._digests.popitem(last=False)

    def discard(self, digest: bytes) -> None:
        """Forget one."""
        with self._lock:
            self._digests.pop(digest, None)

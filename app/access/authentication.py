"""Authentication: from credentials to a caller, within the limits of calls and of failures.

A key that was looked up within the last second is not looked up again. Credentials that were valid
recently are looked up at once. All others are first held to the limit of their address, so that
guessing stops before it reaches the ledger or an issuer's signature. Known callers behind the same
address are not affected.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.access import api_keys
from app.access.api_keys import Caller
from app.access.pseudonyms import Pseudonyms
from app.access.rate_limits import CallLimits, FailureLimit, Quota
from app.access.tokens import Tokens
from app.domain.errors import InvalidCredentialsError, UnauthenticatedError
from app.runtime.database import Database

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

    def look_up(self, digest: bytes, ask: Callable[[], Caller]) -> Caller:
        """Return whom ``ask`` finds, and remember it unless something was revoked meanwhile."""
        began, revocations = time.monotonic(), api_keys.revocations()
        caller = ask()
        lasts_s = self._lifetime_s if caller.lasts_s is None else caller.lasts_s
        until = began + min(self._lifetime_s, lasts_s)
        with self._lock:
            self._entries[digest] = _Entry(caller, until, revocations)
            self._entries.move_to_end(digest)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return caller

    def discard(self, digest: bytes) -> None:
        """Forget credentials that are no longer accepted."""
        with self._lock:
            self._entries.pop(digest, None)


_NO_CREDENTIALS = "send a valid API key or access token as 'Authorization: Bearer …'"


@dataclass(frozen=True)
class Authentication:
    """Finds callers by their credentials; without ``tokens``, no access token is accepted."""

    database: Database
    pseudonyms: Pseudonyms
    tokens: Tokens | None
    calls: CallLimits
    failures: FailureLimit
    known: KnownCallers = field(default_factory=KnownCallers, init=False)

    async def caller_of(self, credentials: str | None, address: str) -> Caller:
        """Return the caller.

        Raises:
            UnauthenticatedError: the credentials are unknown or no longer valid.
            TooManyRequestsError: the address has failed too often.
            IssuerUnavailableError: a token cannot be checked now.
        """
        if not credentials:
            raise UnauthenticatedError(_NO_CREDENTIALS)
        digest = api_keys.digest_of(credentials)
        known = self.known.find(digest)
        if known is not None:
            return known
        if digest not in self.known:
            await run_in_threadpool(self.failures.check, address)
        try:
            if self.tokens is None or credentials.startswith(api_keys.PREFIX):
                ask = partial(api_keys.holder_of, secret=credentials)
            else:
                bearer = await self.tokens.bearer_of(credentials)
                identity = self.pseudonyms.caller(bearer.issuer, bearer.subject)
                ask = partial(api_keys.token_caller, identity=identity, scopes=bearer.scopes)
            return await run_in_threadpool(self._ask, digest, ask)
        except InvalidCredentialsError:
            self.known.discard(digest)
            await run_in_threadpool(self.failures.note, address)
            raise

    async def count(self, caller: Caller) -> tuple[bool, Sequence[Quota]]:
        """Count a call; return whether it may be made, and what is left."""
        if not self.calls:
            return True, ()
        return await run_in_threadpool(self.calls.take, caller.key_id)

    def _ask(self, digest: bytes, ask: Callable[[Session], Caller]) -> Caller:
        with self.database.transaction() as session:
            return self.known.look_up(digest, lambda: ask(session))

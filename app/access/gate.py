"""Authentication: from credentials to a caller, within the limits of calls and of failures.

A key that was looked up within the last second is not looked up again, and a key in steady use is
renewed before that second ends. Credentials that were valid recently are looked up at once. All
others are first held to the limit of their address, so that guessing stops before it reaches the
ledger or an issuer's signature. Known callers behind the same address are not affected.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.access import api_keys
from app.access.api_keys import Caller
from app.access.known import KnownCallers
from app.access.rate_limits import CallLimits, FailureLimit, Quota
from app.access.recent import RecentlyAccepted
from app.access.tokens import Bearer, Tokens
from app.database import Database
from app.database.group_commit import Together
from app.datasets.pseudonyms import Pseudonyms
from app.domain.errors import ExpungeError, InvalidCredentialsError, UnauthenticatedError

_NO_CREDENTIALS = "send a valid API key or access token as 'Authorization: Bearer …'"


class Gate:
    """Tells callers by their credentials.

    Args:
        database: where callers are kept.
        pseudonyms: names callers that have no key.
        tokens: checks access tokens; None if none are accepted.
        calls, failures: the limits.
    """

    def __init__(
        self,
        database: Database,
        pseudonyms: Pseudonyms,
        *,
        tokens: Tokens | None,
        calls: CallLimits,
        failures: FailureLimit,
    ) -> None:
        self._database = database
        self._pseudonyms = pseudonyms
        self._tokens = tokens
        self._calls = calls
        self._failures = failures
        self._recent = RecentlyAccepted()
        self._known = KnownCallers()
        self._look_ups = Together(self._by_keys)

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
        known = self._known.find(digest)
        if known is not None:
            if self._known.is_due(digest):
                self._look_ups.start(credentials)
            return known
        if digest not in self._recent:
            await run_in_threadpool(self._failures.check, address)
        try:
            caller = await self._look_up(credentials)
        except InvalidCredentialsError:
            self._recent.discard(digest)
            await run_in_threadpool(self._failures.note, address)
            raise
        self._recent.add(digest)
        return caller

    async def count(self, caller: Caller) -> tuple[bool, Sequence[Quota]]:
        """Count a call; return whether it may be made, and what is left."""
        if not self._calls:
            return True, ()
        return await run_in_threadpool(self._calls.take, caller.key_id)

    async def _look_up(self, credentials: str) -> Caller:
        if self._tokens is None or credentials.startswith(api_keys.PREFIX):
            return await asyncio.wrap_future(self._look_ups.start(credentials))
        bearer = await self._tokens.bearer_of(credentials)
        return await run_in_threadpool(self._by_token, bearer)

    def _by_keys(self, secrets: Sequence[str]) -> list[Caller | Exception]:
        with self._database.transaction() as session:
            found = {secret: self._by_key(session, secret) for secret in set(secrets)}
        return [found[secret] for secret in secrets]

    def _by_key(self, session: Session, secret: str) -> Caller | Exception:
        try:
            return self._known.look_up(
                api_keys.digest_of(secret), lambda: api_keys.holder_of(session, secret)
            )
        except ExpungeError as error:
            return error

    def _by_token(self, bearer: Bearer) -> Caller:
        identity = self._pseudonyms.caller(bearer.issuer, bearer.subject)
        with self._database.transaction() as session:
            return api_keys.token_caller(session, identity, bearer.scopes)

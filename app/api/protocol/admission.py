"""Which calls are worked on: a few of each caller at a time, so that nobody's flood delays others.

A call counts until its handler ends, however early its client leaves. Calls of a caller who has
too many at work wait for their turn. When it comes, a call whose client has left is dropped before
anything is done for it. Callers are told apart by accepted credentials, all others by address.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import api_keys
from app.access.rate_limits import network_of
from app.api.protocol.errors import problem_of
from app.domain.errors import OverloadedError, TooManyRequestsError

AT_ONCE: Final = 16
"""How many calls of one caller are worked on at once."""
_QUEUED: Final = 384
_QUEUED_NAMELESS: Final = 64
_PROBES: Final = ("/livez", "/readyz")
CLIENT_LEFT: Final = 499
"""The status in logs and metrics of a call that nobody waits for any more."""
_Caller = tuple[bytes | None, str]
"""The digest of accepted credentials; of others, whether there are any, and whence they come."""
_TURNS: Final = "expunge.turns"  # a key of the ASGI scope


class Admission:
    """Middleware that gives calls their turns; probes need none.

    ``most_calls`` is how many there may be, with those that wait: beyond that, 503. ``known`` are
    digests of credentials that were accepted.
    """

    def __init__(self, app: ASGIApp, *, most_calls: int, known: Container[bytes]) -> None:
        self._app = app
        self._most_calls = most_calls
        self._known = known
        self._calls = 0
        self._callers: dict[_Caller, _Turns] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on when it is its turn; 429 if too many of its caller wait already."""
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        caller = self._caller_of(scope)
        turns = scope[_TURNS] = self._callers.get(caller) or _Turns()
        most = _QUEUED_NAMELESS if caller[0] is None else _QUEUED
        if self._calls >= self._most_calls or len(turns.queue) >= most:
            refusal = (
                TooManyRequestsError("too many calls of this caller wait", retry_after_s=1)
                if len(turns.queue) >= most
                else OverloadedError("the service has as many calls as it can at once")
            )
            await problem_of(refusal)(scope, receive, send)
            return
        self._callers[caller] = turns
        self._calls += 1
        try:
            first = await _arrived(receive) if await turns.take() else None
            if first is not None and first["type"] == "http.disconnect":
                await Response(status_code=CLIENT_LEFT)(scope, receive, send)
            else:
                await self._app(scope, _after(first, receive), send)
        finally:
            turns.leave()
            self._calls -= 1
            if not turns.working and not turns.queue:
                self._callers.pop(caller, None)

    def _caller_of(self, scope: Scope) -> _Caller:
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        network = network_of((scope["client"] or ("",))[0])
        if sent is None:
            return None, network
        digest = api_keys.digest_of(sent.decode("latin-1").partition(" ")[2].strip())
        return (digest, "") if digest in self._known else (b"", network)


@asynccontextmanager
async def idle(scope: Scope) -> AsyncIterator[None]:
    """Let other calls of the caller have this call's turn meanwhile, as it only waits."""
    turns: _Turns = scope[_TURNS]
    turns.leave()
    try:
        yield
    finally:
        await turns.take()


class _Turns:
    """The turns of one caller's calls."""

    def __init__(self) -> None:
        self.working = 0
        self.queue: deque[asyncio.Future[None]] = deque()

    async def take(self) -> bool:
        """Wait for a turn, which is taken even if this is cancelled; return whether it waited."""
        if self.working < AT_ONCE:
            self.working += 1
            return False
        turn = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self.queue:
                self.queue.remove(turn)
                self.working += 1
            raise
        return True

    def leave(self) -> None:
        """Give the turn to the call that has waited for longest."""
        if self.queue:
            turn = self.queue.popleft()
            turn.get_loop().call_soon_threadsafe(_begin, turn)
        else:
            self.working -= 1


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # it may have been cancelled
        turn.set_result(None)


async def _arrived(receive: Receive) -> Message | None:
    """Return what has come of a call already; None if that is nothing."""
    coming = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    if coming.done():
        return coming.result()
    coming.cancel()
    return None


def _after(first: Message | None, receive: Receive) -> Receive:
    """Return a ``receive`` that begins with a message that was received before."""
    held = [] if first is None else [first]

    async def next_message() -> Message:
        return held.pop() if held else await receive()

    return next_message

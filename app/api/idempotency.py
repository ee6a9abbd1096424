"""``Idempotency-Key`` on every POST: the same call again gets the answer that it had.

One middleware for all operations. Only answers that say that a call took effect (2xx) are kept: an
error changed nothing, so the call may be made again under its key.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import authenticate, needed_scopes, require_scope, services_of
from app.api.errors import problem_of
from app.domain.errors import ExpungeError, InvalidInputError
from app.ledger import idempotency
from app.ledger.idempotency import Answer, Call, Claim
from app.logs import describe
from app.points import reach
from app.services import Services

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
MAX_KEY_LENGTH = 255
_STATE = "idempotent_call_id"
_log = logging.getLogger("expunge.api")


async def _call_id_of(request: Request) -> str | None:
    """Return what stays the same for each attempt at a call; None without a key."""
    call_id: str | None = getattr(request.state, _STATE, None)
    return call_id


CallId = Annotated[str | None, Depends(_call_id_of)]


class Idempotency:
    """Replays the answers of POSTs that come again under the same key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from what is kept, or have the call executed and keep its answer."""
        key = Headers(scope=scope).get(HEADER) if _is_post(scope) else None
        if key is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            found = await _claim(request, key)
        except (ExpungeError, HTTPException, SQLAlchemyError) as error:
            await problem_of(error)(scope, receive, send)
            return
        if isinstance(found, Answer):
            await _replay(found)(scope, receive, send)
            return
        body = _Body(await request.body(), receive)
        scope.setdefault("state", {})[_STATE] = found.call_id
        await self._execute(scope, body, send, _Attempt(services_of(request), found))

    async def _execute(
        self, scope: Scope, receive: Receive, send: Send, attempt: "_Attempt"
    ) -> None:
        """Execute a call; its answer is kept before it is sent, so that whoever saw it can repeat.

        A call that is cut off leaves its claim to run out, and one that failed ends it. Either may
        have taken effect, so the next attempt is made under the same call id.
        """
        messages: list[Message] = []

        async def hold_back(message: Message) -> None:
            messages.append(message)

        try:
            await self._app(scope, receive, hold_back)
        except Exception:
            await run_in_threadpool(attempt.release)
            raise
        reach("answer")
        answer = replace(_answer_in(messages), scopes=needed_scopes(Request(scope)))
        await run_in_threadpool(attempt.end, answer)
        for message in messages:
            await send(message)


class _Attempt:
    """One claimed execution of a call."""

    def __init__(self, services: Services, claim: Claim) -> None:
        self._services = services
        self._claim = claim

    def end(self, answer: Answer) -> None:
        if 200 <= answer.status < 300:
            self._note(partial(idempotency.finish, claim=self._claim, answer=answer))
        elif answer.status < 500:
            self._note(partial(idempotency.abandon, claim=self._claim))
        else:
            self.release()

    def release(self) -> None:
        self._note(partial(idempotency.release, claim=self._claim))

    def _note(self, write: Callable[[Session], None]) -> None:
        try:
            with self._services.database.transaction() as session:
                write(session)
        except SQLAlchemyError as error:
            _log.warning("an answer could not be kept for its key: %s", describe(error))


class _Body:
    """Gives a body that was read already to whoever reads it next."""

    def __init__(self, content: bytes, receive: Receive) -> None:
        self._content: bytes | None = content
        self._receive = receive

    async def __call__(self) -> Message:
        if self._content is None:
            return await self._receive()
        message = {"type": "http.request", "body": self._content, "more_body": False}
        self._content = None
        return message


async def _claim(request: Request, key: str) -> Claim | Answer:
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise InvalidInputError(f"{HEADER} must have 1 to {MAX_KEY_LENGTH} characters")
    caller = await authenticate(request)
    services = services_of(request)
    call = Call(
        caller_id=caller.key_id,
        method=request.method,
        path=request.url.path,
        query=request.url.query.encode(),
        body=await request.body(),
        key=key,
    )

    def claim() -> Claim | Answer:
        with services.database.transaction() as session:
            return services.idempotency_keys.claim(session, call)

    found = await run_in_threadpool(claim)
    if isinstance(found, Answer):  # a token may allow less than the one that it was given to
        for scope in sorted(found.scopes):
            require_scope(caller, scope)
    return found


def _is_post(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "POST")


def _answer_in(messages: list[Message]) -> Answer:
    start = messages[0]
    headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in start["headers"])
    body = b"".join(message.get("body", b"") for message in messages[1:])
    return Answer(start["status"], headers, body)


def _replay(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    response.raw_headers = [*sent, (REPLAYED_HEADER.lower().encode(), b"true")]
    return response

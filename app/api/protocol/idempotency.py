"""``Idempotency-Key`` on every POST and PUT: a repeated call gets the stored answer.

It is checked after authentication, before the body is read. Only successful answers (2xx) are
stored: an error changed nothing, so the call may be repeated with its key.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.access import idempotency
from app.access.api_keys import Caller
from app.access.idempotency import Answer, Call, Claim
from app.api.protocol.bodies import whole_body
from app.api.protocol.errors import problem_of
from app.domain.errors import InvalidInputError
from app.runtime.failpoints import reach
from app.runtime.logs import describe
from app.services import Services

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
MAX_KEY_LENGTH = 255
_STATE = "idempotency_claim"
_METHODS = ("POST", "PUT")
_log = logging.getLogger("expunge.api")


async def _claim_of(request: Request) -> Claim | None:
    """Return the claim whose ``call_id`` is the same for every attempt at a call, if any."""
    claim: Claim | None = getattr(request.state, _STATE, None)
    return claim


ClaimOf = Annotated[Claim | None, Depends(_claim_of)]


async def execute_once(
    request: Request, caller: Caller, handle: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Return the answer to a call: the stored one of its key, or that of ``handle``.

    The answer is stored before it is sent, so that a caller who saw it can repeat the call. The
    claim of an interrupted call expires; a failed call releases its claim. Either may have taken
    effect, so the next attempt runs under the same call id.

    Raises:
        InvalidInputError: the key is too long, or was used with another body.
        CallInFlightError: the call is still in progress.
    """
    key = request.headers.get(HEADER) if request.method in _METHODS else None
    if key is None:
        return await handle(request)
    found = await _claim(request, caller, key)
    if isinstance(found, Answer):
        replayed = Response(found.body, found.status)
        sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers]
        replayed.raw_headers = [*sent, (REPLAYED_HEADER.lower().encode(), b"true")]
        return replayed
    setattr(request.state, _STATE, found)
    settle = partial(_settle, request.app.state.services, found)
    try:
        response = await handle(request)
    except Exception as error:
        status = problem_of(error).status_code
        await run_in_threadpool(settle, Answer(status, (), b""))
        raise
    reach("answer")
    await run_in_threadpool(settle, _answer_of(response))
    return response


def keep(session: Session, claim: Claim | None, response: Response) -> None:
    """Keep the answer of a call in the transaction of its effect; see ``idempotency.keep``."""
    if claim is not None:
        idempotency.keep(session, claim, _answer_of(response))


def _answer_of(response: Response) -> Answer:
    headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in response.raw_headers)
    return Answer(response.status_code, headers, bytes(response.body))


def _settle(services: Services, claim: Claim, answer: Answer) -> None:
    """Store an answer that may be repeated; else free the claim, or the key if nothing changed."""
    if 200 <= answer.status < 300:
        write = partial(idempotency.finish, claim=claim, answer=answer)
    elif answer.status < 500:
        write = partial(idempotency.abandon, claim=claim)
    else:
        write = partial(idempotency.release, claim=claim)
    try:
        with services.database.transaction() as session:
            write(session)
    except SQLAlchemyError as error:
        _log.warning("the answer for an idempotency key was not stored: %s", describe(error))


async def _claim(request: Request, caller: Caller, key: str) -> Claim | Answer:
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise InvalidInputError(f"{HEADER} must have 1 to {MAX_KEY_LENGTH} characters")
    services: Services = request.app.state.services
    call = Call(
        caller_id=caller.key_id,
        method=request.method,
        path=request.url.path,
        query=request.url.query.encode(),
        body=await whole_body(request),
        key=key,
    )

    def claim() -> Claim | Answer:
        with services.database.transaction() as session:
            return services.idempotency_keys.claim(session, call)

    return await run_in_threadpool(claim)

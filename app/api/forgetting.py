"""Forget requests and polls of them; those that arrive at the same time are handled together.

Requests of one dataset are handled together: each dataset has its own lane, so that no request
waits for another dataset.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from app.database.group_commit import Lanes, Together
from app.domain.errors import ExpungeError, NotFoundError
from app.domain.states import RequestState
from app.ledger import repository, request_views
from app.ledger.demands import Call
from app.ledger.request_views import RequestView
from app.services import Services

_LINGER_S = 0.005
_FEW = 1000
"""A request for more ids is handled by itself, so that no other waits for its lookups."""


@dataclass(frozen=True)
class _Submitted:
    """A request by its id; its rendered form, if known already; whether it is certified."""

    request_id: str
    view: RequestView | None
    is_certified: bool


class Forgetting:
    """Accepts requests and shows them, for all calls of one process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._submissions = Lanes(self._submit_all, linger_s=_LINGER_S)
        self._polls = Together(self._read_all)

    async def submit(self, call: Call) -> RequestView:
        """Accept a new request; return it.

        Raises:
            ExpungeError: as ``ForgetRequests.submit`` does.
        """
        if call.demand.size > _FEW:
            submitted = await run_in_threadpool(self._alone, call)
        else:
            submitted = await asyncio.wrap_future(
                self._submissions.start(call.demand.dataset, call)
            )
        if submitted.is_certified:
            await run_in_threadpool(
                self._services.complete_at_once, lambda _: [submitted.request_id]
            )
        return submitted.view or await self.read(submitted.request_id)

    async def read(self, request_id: str) -> RequestView:
        """Return a request; ``NotFoundError`` if there is none."""
        return await asyncio.wrap_future(self._polls.start(request_id))

    def _alone(self, call: Call) -> _Submitted:
        (answer,) = self._submit_all([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _submit_all(self, calls: Sequence[Call]) -> list[_Submitted | Exception]:
        try:
            return self._take_on(calls)
        except IntegrityError:
            # Another lane accepted the same external_id meanwhile: now it is found.
            return self._take_on(calls)

    def _take_on(self, calls: Sequence[Call]) -> list[_Submitted | Exception]:
        answers: list[_Submitted | Exception] = []
        with self._services.database.transaction() as session:
            for taken in self._services.forget_requests.submit_all(session, calls):
                if isinstance(taken, ExpungeError):
                    answers.append(taken)
                    continue
                view = request_views.of_taken(taken)
                seen = view or repository.request(session, taken.request_id)
                is_certified = seen.state == RequestState.CERTIFIED
                answers.append(_Submitted(taken.request_id, view, is_certified))
        return answers

    def _read_all(self, ids: Sequence[str]) -> list[RequestView | Exception]:
        with self._services.database.at_once() as connection:
            found = request_views.read(connection, set(ids))
        return [found.get(i) or NotFoundError("forget request", i) for i in ids]


async def _forgetting_of(request: Request) -> Forgetting:
    forgetting: Forgetting = request.app.state.forgetting
    return forgetting


ForgettingOf = Annotated[Forgetting, Depends(_forgetting_of)]

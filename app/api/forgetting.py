"""``POST /v1/forget-requests``: those that arrive at the same time are accepted together.

Each dataset has its own lane, so that no request waits for another dataset.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, StringConstraints
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from app.api.forget_requests import RETRY_AFTER_S, ForgetAnswer, answer_of
from app.api.protocol.access import ForgetWriter, GuardedRoute, ServicesOf
from app.api.protocol.errors import problem_responses
from app.api.protocol.headers import answer_headers
from app.api.protocol.idempotency import CallId
from app.api.protocol.schemas import Body, ExternalId, Name, OwnerId
from app.api.protocol.waiting import json_response
from app.callbacks.urls import MAX_URL_LENGTH, MAX_URLS
from app.database.group_commit import Lanes
from app.domain.states import RequestState
from app.ledger import request_views
from app.ledger.accepting import Taken
from app.ledger.demands import Call, ForgetDemand
from app.ledger.request_views import RequestView
from app.log import actor
from app.services import Services

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
_MAX_IDS = 100_000
_LINGER_S = 0.005
_FEW = 1000
"""A request for more ids is handled by itself, so that no other waits for its lookups."""
CallbackUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_URL_LENGTH),
    Field(json_schema_extra={"format": "uri"}),
]


class ForgetBody(Body):
    """Who or what must be forgotten."""

    dataset: Name = Field(examples=["digits"])
    record_ids: list[OwnerId] = Field(default_factory=list, max_length=_MAX_IDS, fail_fast=True)
    subject_ids: list[OwnerId] = Field(
        default_factory=list, max_length=_MAX_IDS, fail_fast=True, examples=[["person-0017"]]
    )
    external_id: ExternalId | None = Field(default=None, examples=["ticket-4711"])
    status_callback_urls: list[CallbackUrl] = Field(
        default_factory=list,
        max_length=MAX_URLS,
        description="Receive every change of the request's state; see docs/callbacks.md.",
        examples=[["https://privacy.example/expunge"]],
    )


class Forgetting:
    """Accepts requests, for all calls of one process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lanes = Lanes(self._submit_all, linger_s=_LINGER_S)

    async def submit(self, call: Call) -> RequestView:
        """Accept a new request; return it.

        Raises:
            ExpungeError: as ``Acceptance.submit`` does.
        """
        if call.demand.size > _FEW:
            view = await run_in_threadpool(self._alone, call)
        else:
            view = await asyncio.wrap_future(self._lanes.start(call.demand.dataset, call))
        if view.state == RequestState.CERTIFIED:
            return await run_in_threadpool(self._completed, view.id)
        return view

    def _completed(self, request_id: str) -> RequestView:
        self._services.complete_at_once(lambda _: [request_id])
        with self._services.database.transaction() as session:
            return request_views.one(session, request_id)

    def _alone(self, call: Call) -> RequestView:
        (answer,) = self._submit_all([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _submit_all(self, calls: Sequence[Call]) -> list[RequestView | Exception]:
        try:
            return self._take_on(calls)
        except IntegrityError:
            # Another lane accepted the same external_id meanwhile: now it is found.
            return self._take_on(calls)

    def _take_on(self, calls: Sequence[Call]) -> list[RequestView | Exception]:
        with self._services.database.transaction() as session:
            answers = self._services.acceptance.submit_all(session, calls)
            session.flush()
            ids = [taken.request_id for taken in answers if isinstance(taken, Taken)]
            views = request_views.read(session, ids)
        return [views[of.request_id] if isinstance(of, Taken) else of for of in answers]


async def _forgetting_of(request: Request) -> Forgetting:
    forgetting: Forgetting = request.app.state.forgetting
    return forgetting


@router.post(
    "",
    status_code=202,
    response_model=ForgetAnswer,
    responses=problem_responses(404, 422) | answer_headers(202, "Location", "Retry-After"),
)
async def submit(
    body: ForgetBody,
    services: ServicesOf,
    forgetting: Annotated[Forgetting, Depends(_forgetting_of)],
    caller: ForgetWriter,
    call_id: CallId,
) -> Response:
    """Ask that records or subjects be forgotten by every model trained on their dataset."""
    demand = ForgetDemand(**vars(body), idempotency_key=call_id)
    view = await forgetting.submit(Call(demand, caller.key_id, actor.current()))
    answer = answer_of(services, view, external_id=body.external_id)
    response = json_response(answer, 202)
    response.headers["Location"] = f"/v1/forget-requests/{view.id}"
    response.headers["Retry-After"] = RETRY_AFTER_S
    return response

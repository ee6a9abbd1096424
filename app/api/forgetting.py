"""``POST /v1/forget-requests``: those that arrive at the same time are accepted together.

Each dataset has its own lane, so that no request waits for another dataset.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field, StringConstraints
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from app.api.forget_requests import RETRY_AFTER_S, ForgetAnswer, ForgetAnswers, answer_of
from app.api.protocol.access import ForgetWriter, GuardedRoute, Make, ServicesOf, part
from app.api.protocol.errors import answers, problem_responses
from app.api.protocol.idempotency import CallId
from app.api.protocol.schemas import Answer, Body, ExternalId, Name, OwnerId, answer_headers
from app.api.protocol.waiting import json_response
from app.delivery.callbacks.urls import MAX_URL_LENGTH, MAX_URLS
from app.domain.plan import Plan
from app.domain.states import ObligationState, RequestState
from app.evidence.log import actor
from app.ledger import previews
from app.ledger.accepting import Accepted
from app.ledger.everywhere import parts_of
from app.ledger.new_requests import MAX_IDS, Call, NewForgetRequest
from app.ledger.previews import Effect
from app.ledger.views import request_views
from app.ledger.views.request_views import RequestView
from app.runtime.database.group_commit import Lanes
from app.services import Services

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
_LINGER_S = 0.005
_FEW = 1000
"""A request for more ids is handled by itself, so that no other waits for its lookups."""
_CERTIFIED = (RequestState.CERTIFIED, RequestState.COMPLETED)
CallbackUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=MAX_URL_LENGTH),
    Field(json_schema_extra={"format": "uri"}),
]


class PreviewBody(Body):
    """Who or what would have to be forgotten."""

    dataset: Name | None = Field(
        default=None,
        description="Without it, everywhere the people of subject_ids are known.",
        examples=["digits"],
    )
    record_ids: list[OwnerId] = Field(default_factory=list, max_length=MAX_IDS, fail_fast=True)
    subject_ids: list[OwnerId] = Field(
        default_factory=list, max_length=MAX_IDS, fail_fast=True, examples=[["person-0017"]]
    )


class ForgetBody(PreviewBody):
    """Who or what must be forgotten."""

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
        self._lanes = Lanes(self.submit_all, linger_s=_LINGER_S)

    async def submit(self, call: Call) -> RequestView:
        """Accept a new request; return it.

        Raises:
            ExpungeError: as ``Acceptance.submit`` does.
        """
        if call.request.size > _FEW:
            return await run_in_threadpool(self._alone, call)
        return await asyncio.wrap_future(self._lanes.start(call.request.dataset, call))

    def everywhere(self, call: Call) -> list[tuple[RequestView, NewForgetRequest]]:
        """Accept a request about people in each dataset that knows them, all or none.

        Raises:
            ExpungeError: as ``parts_of`` and ``Acceptance.submit`` do.
        """
        parts = self.parts_of(call)
        answers = self.submit_all([replace(call, request=part) for part in parts])
        views = [answer for answer in answers if isinstance(answer, RequestView)]
        return list(zip(views, parts, strict=True))

    def parts_of(self, call: Call) -> list[NewForgetRequest]:
        """Return the requests that a call makes: itself, or one for each dataset."""
        if call.request.dataset:
            return [call.request]
        with self._services.database.transaction() as session:
            pseudonyms = self._services.pseudonyms
            return parts_of(session, call.request, pseudonyms, api_key_id=call.api_key_id)

    def _alone(self, call: Call) -> RequestView:
        (answer,) = self.submit_all([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit_all(self, calls: Sequence[Call]) -> list[RequestView | Exception]:
        """Accept new requests in one transaction; return each, or its own error in its place."""
        try:
            return self._accept(calls)
        except IntegrityError:
            # Another lane accepted the same external_id meanwhile: now it is found.
            return self._accept(calls)

    def _accept(self, calls: Sequence[Call]) -> list[RequestView | Exception]:
        with self._services.database.transaction() as session:
            for dataset in {call.request.dataset for call in calls}:
                self._services.acceptance.present_releases.warm(session, dataset)
            answers = self._services.acceptance.submit_all(session, calls)
            for call, answer in zip(calls, answers, strict=True):
                if call.request.everywhere and isinstance(answer, Exception):
                    raise answer  # all of its parts, or none
            session.flush()
            ids = [accepted.request_id for accepted in answers if isinstance(accepted, Accepted)]
            views = request_views.read(session, ids)
        return [
            views[answer.request_id] if isinstance(answer, Accepted) else answer
            for answer in answers
        ]


ForgettingOf = Annotated[Forgetting, part("forgetting")]


class RunPreview(Answer):
    """The run that a request would need, by itself; those that come meanwhile share it."""

    mechanism: str
    epsilon: float
    gradient_computations: float
    noise_per_coordinate: float


class EffectAnswer(Answer):
    """What a request would be owed by one model."""

    model: str
    basis: str
    certified_at_once: bool
    run: RunPreview | None = Field(description="What it needs otherwise.")
    withdrawn: bool = Field(
        description="Whether the model would be withdrawn: no record would be left to learn from."
    )
    problem: str | None = Field(description="Why no run could meet the policy, if none could.")


class PreviewAnswer(Answer):
    """What a forget request would reach and cost. It was not made."""

    dataset: str
    records: int
    pushes: int = Field(description="How many pushes brought the records that it names.")
    due_at: datetime
    certified_at_once: bool
    models: list[EffectAnswer]


class PreviewAnswers(Answer):
    """What a request without a dataset would reach: its part in each that knows its people."""

    previews: list[PreviewAnswer]


@router.post("/preview", **answers(404))
def preview_forget_request(
    body: PreviewBody,
    services: ServicesOf,
    forgetting: ForgettingOf,
    caller: ForgetWriter,
    make: Make,
) -> PreviewAnswer | PreviewAnswers:
    """Say which models a forget request would reach and what they would do; nothing changes.

    It is accepted as any other and rolled back, so it needs the same scope and is refused alike.
    """
    call = Call(_asked(body), caller.key_id, actor.current())
    database, acceptance = services.database, services.acceptance
    found = [
        previews.preview(database, acceptance, part, api_key_id=caller.key_id, make=make)
        for part in forgetting.parts_of(call)
    ]
    answers = [
        PreviewAnswer.of(
            each.view,
            certified_at_once=each.view.state == RequestState.CERTIFIED,
            models=[_effect_answer(effect) for effect in each.effects],
        )
        for each in found
    ]
    return PreviewAnswers(previews=answers) if body.dataset is None else answers[0]


def _asked(body: PreviewBody, call_id: str | None = None) -> NewForgetRequest:
    named = vars(body) | {"dataset": body.dataset or ""}
    return NewForgetRequest(**named, idempotency_key=call_id)


def _effect_answer(effect: Effect) -> EffectAnswer:
    owed, plan = effect.obligation, effect.plan
    return EffectAnswer.of(
        effect,
        model=owed.model,
        basis=owed.basis,
        certified_at_once=owed.state == ObligationState.CERTIFIED,
        run=None if plan is None else {"mechanism": plan.mechanism, **_predicted(plan)},
    )


def _predicted(plan: Plan) -> dict[str, float]:
    return {name: plan.predicted[name] for name in RunPreview.model_fields if name != "mechanism"}


@router.post(
    "",
    status_code=202,
    response_model=ForgetAnswer | ForgetAnswers,
    responses=problem_responses(404, 409, 422)
    | answer_headers(202, "Location", "Retry-After")
    | {
        201: {
            "model": ForgetAnswer | ForgetAnswers,
            "description": "No model needs a run: it is certified.",
            **answer_headers(201, "Location")[201],
        }
    },
)
async def create_forget_request(
    body: ForgetBody,
    services: ServicesOf,
    forgetting: ForgettingOf,
    caller: ForgetWriter,
    call_id: CallId,
) -> Response:
    """Ask that records or subjects be forgotten by every model trained on their dataset.

    201 says that no model needs a run: the request is certified already, and its stored records
    are erased next. 202 says that a model has to unlearn first. Without ``dataset``, the people are
    forgotten by every dataset that knows them, all or none: the answer lists a request for each,
    and ``Location`` is the first one's.
    """
    call = Call(_asked(body, call_id), caller.key_id, actor.current())
    if body.dataset is None:
        views = [view for view, _ in await run_in_threadpool(forgetting.everywhere, call)]
    else:
        views = [await forgetting.submit(call)]
    made = [answer_of(services, view, external_id=body.external_id) for view in views]
    waits = any(view.state not in _CERTIFIED for view in views)
    answer = made[0] if body.dataset else ForgetAnswers(requests=made)
    response = json_response(answer, 202 if waits else 201)
    response.headers["Location"] = f"/v1/forget-requests/{views[0].id}"
    if waits:
        response.headers["Retry-After"] = RETRY_AFTER_S
    return response

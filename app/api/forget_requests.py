"""``/v1/forget-requests``: made, previewed, read, decided on, cancelled, tried again.

New requests that arrive at the same time are accepted together. Each dataset has its own lane, so
that no request waits for another dataset.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field, JsonValue, StringConstraints
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.api.certificates import BundleAnswer, Since, bundle_answer
from app.api.datasets import ColumnName
from app.api.protocol.access import (
    ForgetAsker,
    ForgetReader,
    ForgetWriter,
    GuardedRoute,
    Make,
    OwnForgetReader,
    ServicesOf,
    part,
    require_own,
    require_scope,
)
from app.api.protocol.errors import answers, problem_responses
from app.api.protocol.idempotency import ClaimOf
from app.api.protocol.schemas import (
    Answer,
    Body,
    ExternalId,
    Name,
    OwnerId,
    Page,
    PageByMoment,
    answer_headers,
    shaped_as,
)
from app.api.protocol.waiting import Found, Prefer, answer_with_news, json_response, wait_of
from app.delivery.callbacks.addresses import MAX_URL_LENGTH, MAX_URLS
from app.domain.errors import InvalidInputError, NotFoundError
from app.domain.states import ObligationState, RequestState, Scope
from app.evidence.log import actor
from app.ledger import previews, repository
from app.ledger.accepting import Accepted
from app.ledger.certificates import issuing
from app.ledger.costs import Seconds
from app.ledger.everywhere import external_keys, parts_of
from app.ledger.leaving_out import AT_ONCE_BYTES, Owing, owing_ones
from app.ledger.new_requests import MAX_IDS, NOT_SENT, Call, NewForgetRequest
from app.ledger.previews import Effect
from app.ledger.views import request_views
from app.ledger.views.changes import Kind
from app.ledger.views.request_views import RequestView
from app.registry.tables import ModelRow
from app.runtime.database import Database
from app.runtime.database.group_commit import GroupCommit, Lanes
from app.services import Services

router = APIRouter(prefix="/v1/forget-requests", tags=["forget requests"], route_class=GuardedRoute)
RETRY_AFTER_S = "2"
_ENDED = (
    *(RequestState.COMPLETED, RequestState.FAILED),
    *(RequestState.CANCELLED, RequestState.REFUSED),
)


@shaped_as(
    RequestView,
    without=request_views.UNTOLD,
    external_id=(
        str | None,
        {
            "description": "Only in the answer to the call that sent it, else null: it is not "
            "stored. List requests by it instead."
        },
    ),
    receipt_salt=(
        str | None,
        {"description": "Null once the evidence is destroyed: `EXPUNGE_EVIDENCE_RETENTION`."},
    ),
    certificates=(
        str | None,
        {
            "description": "Where the certificates are, with the proofs of this request's records; "
            "null while there is none."
        },
    ),
)
class ForgetAnswer(Answer):
    """A forget request. With ``receipt_salt`` its sender can show that it was covered."""


class ForgetAnswers(Answer):
    """A request without a dataset: a forget request in each dataset that knows its people."""

    requests: list[ForgetAnswer]


class CertificateOfObligation(Answer):
    """A model's certificate for this request."""

    model: str
    certificate: str
    bundle: BundleAnswer


class Polls:
    """Reads requests, for all calls of one process: those that arrive at the same time together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._commits = GroupCommit(self._read_all)

    async def read(self, request_id: str) -> RequestView:
        """Return a request; ``NotFoundError`` if there is none."""
        return await asyncio.wrap_future(self._commits.start(request_id))

    def _read_all(self, ids: Sequence[str]) -> list[RequestView | Exception]:
        with self._database.at_once() as connection:
            found = request_views.read(connection, ids)
        return [found.get(i) or NotFoundError("forget request", i) for i in ids]


@router.get("", **answers())
def list_forget_requests(
    services: ServicesOf,
    _: ForgetReader,
    page: PageByMoment,
    state: RequestState | None = None,
    model: str | None = None,
    external_id: ExternalId | None = None,
) -> Page[ForgetAnswer]:
    """List requests, newest first.

    An ``external_id`` finds the requests that any caller sent under it, and each part of one in all
    datasets; it is recognised, but never stored or shown.
    """
    with services.database.transaction() as session:
        keys = external_keys(session, services.pseudonyms, external_id) if external_id else None
        rows = repository.requests(
            session,
            state=state,
            model=model,
            external_keys=keys,
            after=page.after,
            limit=page.limit + 1,
        )
        rows, next_cursor = page.cut(rows, lambda row: (row.received_at, row.id))
        views = request_views.read(session, [row.id for row in rows])
        return Page(
            items=[answer_of(services, view) for view in views.values()], next_cursor=next_cursor
        )


@router.get("/{request_id}", **answers(404), response_model=ForgetAnswer)
async def get_forget_request(
    request_id: str,
    request: Request,
    services: ServicesOf,
    polls: Annotated[Polls, part("polls")],
    caller: OwnForgetReader,
    prefer: Prefer = None,
) -> Response:
    """Show one request; with ``Prefer: wait=N``, as soon as its state has changed."""
    if wait_of(prefer) is None:
        return json_response(answer_of(services, await polls.read(request_id)))

    def read(session: Session) -> Found:
        view = request_views.one(session, request_id)
        return Found(view.id, answer_of(services, view), is_final=view.state in _ENDED)

    return await answer_with_news(request, caller, Kind.FORGET_REQUEST, read, prefer=prefer)


@router.delete("/{request_id}", **answers(404, 409))
def cancel_forget_request(request_id: str, services: ServicesOf, _: ForgetWriter) -> ForgetAnswer:
    """Cancel a request that no run has started on.

    Its records stay forgotten, and the models that learned from them still owe a certificate for
    it. Pushed again, they are new records, which later trainings learn from.
    """
    return changed(services, request_id, services.forget_requests.cancel)


@router.post(
    "/{request_id}/retry", **answers(404, 409, status=202, headers=("Location", "Retry-After"))
)
def retry_forget_request(
    request_id: str, services: ServicesOf, _: ForgetWriter, response: Response
) -> ForgetAnswer:
    """Give the obligations of a request that failed another run."""
    answer = changed(services, request_id, services.forget_requests.retry)
    response.headers["Location"] = f"/v1/forget-requests/{request_id}"
    response.headers["Retry-After"] = RETRY_AFTER_S
    return answer


@router.get("/{request_id}/certificates", **answers(404), response_model_exclude_none=True)
def list_forget_request_certificates(
    request_id: str, services: ServicesOf, _: OwnForgetReader, since: Since = None
) -> list[CertificateOfObligation]:
    """Return the certificate of each obligation that has one, for use with the receipt."""
    with services.database.transaction() as session:
        repository.request(session, request_id)
        return [
            CertificateOfObligation(
                model=session.get_one(ModelRow, obligation.model_id).name,
                certificate=obligation.certificate_id,
                bundle=bundle_answer(
                    services,
                    session,
                    issuing.certificate(session, obligation.certificate_id),
                    since=since,
                    request_id=request_id,
                ),
            )
            for obligation in repository.obligations_of_request(session, request_id)
            if obligation.certificate_id is not None
        ]


def changed(
    services: Services, request_id: str, change: Callable[[Session, str], object]
) -> ForgetAnswer:
    """Change a request in one transaction; return it as it is shown."""
    with services.database.transaction() as session:
        change(session, request_id)
        session.flush()
        return answer_of(services, request_views.one(session, request_id))


def answer_of(
    services: Services, view: RequestView, *, external_id: str | None = None
) -> ForgetAnswer:
    """Return a request as it is shown."""
    salt = services.forget_requests.receipt_salt(view)
    certified = any(owed.certificate is not None for owed in view.obligations)
    return ForgetAnswer.of(
        view,
        external_id=external_id,
        receipt_salt=None if salt is None else base64.b64encode(salt).decode(),
        certificates=f"/v1/forget-requests/{view.id}/certificates" if certified else None,
    )


_LINGER_S = 0.005
MAX_REPLACEMENTS = 1000
_FEW = 1000
"""A request for more ids is handled by itself, so that no other waits for its lookups."""
_CERTIFIED = (RequestState.CERTIFIED, RequestState.COMPLETED)
_Answers = list[RequestView | Exception]
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


@shaped_as(
    NewForgetRequest,
    without=(*PreviewBody.model_fields, *NOT_SENT),
    external_id=(ExternalId | None, {"default": None, "examples": ["ticket-4711"]}),
    status_callback_urls=(
        list[CallbackUrl],
        {"default": [], "max_length": MAX_URLS, "examples": [["https://privacy.example/expunge"]]},
    ),
    replacement=(
        list[dict[ColumnName, JsonValue]],
        {
            "default": [],
            "max_length": MAX_REPLACEMENTS,
            "examples": [[{"member": "m-17", "person": "person-0017", "age": 44}]],
        },
    ),
)
class ForgetBody(PreviewBody):
    """Who or what must be forgotten."""


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
        if call.request.replacement:
            return await run_in_threadpool(self._rectify, call)
        if call.request.size > _FEW:
            return _only(await run_in_threadpool(self.submit_all, [call]))
        return await asyncio.wrap_future(self._lanes.start(call.request.dataset, call))

    def accept_held(self, request_id: str) -> RequestView:
        """Accept a request that was held; return it.

        Raises:
            ExpungeError: as ``Acceptance.accept`` does.
        """
        with self._services.database.transaction() as session:
            self._services.acceptance.accept(session, request_id)
            session.flush()
            view = request_views.one(session, request_id)
            owing = owing_ones(session, [view])
        return _only(self._answered([view], owing))

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
        if call.request.replacement:
            raise InvalidInputError("a replacement has one dataset: name it")
        with self._services.database.transaction() as session:
            pseudonyms = self._services.pseudonyms
            return parts_of(session, call.request, pseudonyms, api_key_id=call.api_key_id)

    def _rectify(self, call: Call) -> RequestView:
        """Accept a request whose records are replaced, in one transaction with what replaces them.

        A repeated one gets the first answer, and adds nothing.
        """
        asked, acceptance = call.request, self._services.acceptance
        _require_unheld(asked)

        def forget(session: Session, _: Sequence[str]) -> str:
            acceptance.present_releases.warm(session, asked.dataset)
            row, is_new = acceptance.submit(session, asked, api_key_id=call.api_key_id)
            if not is_new:
                raise _RepeatedError(row.id)
            return row.id

        try:
            request_id = self._services.records.exchange(
                asked.dataset,
                asked.replacement,
                record_ids=asked.record_ids,
                subject_ids=asked.subject_ids,
                forget=forget,
            )
        except _RepeatedError as error:
            request_id = error.request_id
        with self._services.database.transaction() as session:
            view = request_views.one(session, request_id)
            owing = owing_ones(session, [view])
        return _only(self._answered([view], owing))

    def check_replacement(self, asked: NewForgetRequest) -> None:
        """Raise what ``submit`` would raise of a request's corrected rows; store nothing."""
        if asked.replacement:
            _require_unheld(asked)
            self._services.records.replacing(
                asked.dataset,
                asked.replacement,
                record_ids=asked.record_ids,
                subject_ids=asked.subject_ids,
            )

    def submit_all(self, calls: Sequence[Call]) -> _Answers:
        """Accept new requests in one transaction; return each, or its own error in its place."""
        try:
            accepted = self._accept(calls)
        except IntegrityError:
            # Another lane accepted the same external_id meanwhile: now it is found.
            accepted = self._accept(calls)
        return self._answered(*accepted)

    def _answered(self, views: _Answers, owing: Owing) -> _Answers:
        """Leave members of small ensembles out while the callers wait; return what is so then."""
        met = owing and self._services.leave_out_at_once(owing, most_bytes=AT_ONCE_BYTES)
        if not met and not any(owing.values()):
            return views
        ids = [view.id for view in views if isinstance(view, RequestView)]
        with self._services.database.at_once() as connection:
            made = request_views.read(connection, ids)
        return [made[view.id] if isinstance(view, RequestView) else view for view in views]

    def _accept(self, calls: Sequence[Call], *, begins: bool = True) -> tuple[_Answers, Owing]:
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
            owing = owing_ones(session, views.values())
            begun = self._services.begin_leaving_out(session, owing) if begins else owing
        if begun is None:
            return self._accept(calls, begins=False)
        return [
            views[answer.request_id] if isinstance(answer, Accepted) else answer
            for answer in answers
        ], begun


def _only(answers: _Answers) -> RequestView:
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _require_unheld(asked: NewForgetRequest) -> None:
    if asked.hold:
        raise InvalidInputError("a request with a replacement cannot be held: decide first")


class _RepeatedError(Exception):
    """A request was accepted before."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


ForgettingOf = Annotated[Forgetting, part("forgetting")]


class RunPreview(Answer):
    """The run that a request would need, by itself; those that come meanwhile share it."""

    mechanism: str
    epsilon: float
    gradient_computations: float
    noise_per_coordinate: float
    seconds: Seconds | None = Field(description="How long it takes, as in a quote; see /v1/plans.")


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
    named = vars(body) | {"dataset": body.dataset or "", "idempotency_key": call_id}
    return NewForgetRequest(**named, replacements=len(named.get("replacement", ())))


def _effect_answer(effect: Effect) -> EffectAnswer:
    owed, plan = effect.obligation, effect.plan
    shown = RunPreview.model_fields.keys()
    predicted = {} if plan is None else {n: v for n, v in plan.predicted.items() if n in shown}
    return EffectAnswer.of(
        effect,
        model=owed.model,
        basis=owed.basis,
        certified_at_once=owed.state == ObligationState.CERTIFIED,
        run=None
        if plan is None
        else RunPreview(mechanism=plan.mechanism, seconds=effect.seconds, **predicted),
    )


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
    caller: ForgetAsker,
    claim: ClaimOf,
) -> Response:
    """Ask that records or subjects be forgotten by every model trained on their dataset.

    201 says that no model needs a run: the request is certified already, and its stored records
    are erased next. 202 says that a model has to unlearn first. Without ``dataset``, the people are
    forgotten by every dataset that knows them, all or none: the answer lists a request for each,
    and ``Location`` is the first one's.
    """
    if not caller.allows(Scope.FORGET_WRITE):
        await run_in_threadpool(require_own, services, caller, body.dataset, Scope.FORGET_WRITE)
    asked = _asked(body, None if claim is None else claim.call_id)
    if asked.replacement:
        require_scope(caller, Scope.DATA_WRITE)
    call = Call(asked, caller.key_id, actor.current())
    if body.dataset is None:
        views = [view for view, _ in await run_in_threadpool(forgetting.everywhere, call)]
    else:
        views = [await forgetting.submit(call)]
    made = [answer_of(services, view, external_id=asked.external_id) for view in views]
    waits = any(view.state not in _CERTIFIED for view in views)
    answer = made[0] if body.dataset else ForgetAnswers(requests=made)
    response = json_response(answer, 202 if waits else 201)
    response.headers["Location"] = f"/v1/forget-requests/{views[0].id}"
    if waits and not asked.hold:
        response.headers["Retry-After"] = RETRY_AFTER_S
    return response

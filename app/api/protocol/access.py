"""Authentication and scopes of calls, and what endpoints get of the application.

``GuardedRoute`` routes check these before they read any of the body.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends as DependsOn
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from app.access import audit_trail
from app.access.api_keys import Caller
from app.access.authentication import Authentication
from app.api.protocol.bodies import read_body
from app.api.protocol.idempotency import execute_once
from app.domain.errors import ForbiddenError, TooManyRequestsError
from app.domain.states import Scope
from app.evidence.log import actor
from app.ledger import repository as ledger
from app.registry import repository as registry
from app.registry.datasets import repository as datasets
from app.registry.forecasts import PlanMaker
from app.registry.tables import ModelRow
from app.runtime import logs
from app.services import Services

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An API key, or an access token of the issuer that the service trusts. "
    "Each operation lists the scope that it needs; `admin` allows all, and `audit` what an audit "
    "does with a dataset of its own.",
)
_NO_ADDRESS = "local"
_CALLER = "expunge.caller"  # a key of the ASGI scope, which belongs to one request only


def services_of(request: Request) -> Services:
    """Return the application's services."""
    services: Services = request.app.state.services
    return services


def address_of(request: Request) -> str:
    """Return the client's address, for counting failures."""
    return _NO_ADDRESS if request.client is None else request.client.host


async def authenticate(request: Request) -> Caller:
    """Authenticate the caller once per request, and make it the actor.

    Raises:
        UnauthenticatedError: the caller is unknown.
        TooManyRequestsError: too many calls, or too many failures from this address.
        IssuerUnavailableError: the access token cannot be checked now.
    """
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    caller = await authenticate_again(request)
    authentication: Authentication = request.app.state.authentication
    allowed, request.state.quotas = await authentication.count(caller)
    if not allowed:
        used = request.state.quotas[-1]
        raise TooManyRequestsError(
            f"this caller has made all {used.limit} calls of {used.window_s} s",
            retry_after_s=used.reset_s,
        )
    actor.become(caller.key_id)
    logs.note(caller=caller.key_id)
    request.scope[_CALLER] = caller
    return caller


async def authenticate_again(request: Request) -> Caller:
    """Authenticate the caller of a long call again, without counting another call.

    Raises:
        UnauthenticatedError: the key was revoked or has expired meanwhile.
    """
    authentication: Authentication = request.app.state.authentication
    sent: HTTPAuthorizationCredentials | None = await _bearer(request)
    return await authentication.caller_of(
        None if sent is None else sent.credentials, address_of(request)
    )


class Auditing(Enum):
    """What a caller with the scope ``audit`` may do instead of one with the scope of a call.

    ``OWN``: it, with datasets that it defined, their models and their requests. ``ANY``: it; where
    the body names the dataset, the endpoint asks ``require_own``.
    """

    OWN = auto()
    ANY = auto()


@dataclass(frozen=True)
class Needs:
    """Requires a scope of callers."""

    scope: Scope
    auditing: Auditing | None = None

    async def __call__(
        self,
        request: Request,
        _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None,
    ) -> Caller:
        """Return the caller; ``ForbiddenError`` if the caller lacks the scope."""
        caller = await authenticate(request)
        if self.auditing is None or Scope.AUDIT not in caller.scopes:
            require_scope(caller, self.scope)
        elif self.auditing is Auditing.OWN and not caller.allows(self.scope):
            await run_in_threadpool(self._require_own, request, caller)
        return caller

    def _require_own(self, request: Request, caller: Caller) -> None:
        """Raise ``ForbiddenError`` unless what the path names belongs to the caller's dataset."""
        kind = request.scope["route"].path.split("/")[2]
        ((_, name),) = [each for each in request.path_params.items() if each[0] != "number"]
        with services_of(request).database.transaction() as session:
            dataset_id = _DATASET_OF[kind](session, name)
            if not audit_trail.has_defined(session, caller.key_id, dataset_id):
                raise ForbiddenError(self.scope)


_DATASET_OF: Mapping[str, Callable[[Session, str], str]] = {
    "datasets": lambda session, name: datasets.dataset_named(session, name).id,
    "models": lambda session, name: registry.model_named(session, name).dataset_id,
    "runs": lambda session, name: (
        session.get_one(ModelRow, ledger.run(session, name).model_id).dataset_id
    ),
    "forget-requests": lambda session, name: ledger.request(session, name).dataset_id,
}


def require_own(services: Services, caller: Caller, dataset: str | None, scope: Scope) -> None:
    """Raise ``ForbiddenError`` if a caller has neither the scope nor defined the dataset."""
    if dataset is None or caller.allows(scope):
        require_scope(caller, scope)
        return
    with services.database.transaction() as session:
        found = datasets.dataset_named(session, dataset)
        if not audit_trail.has_defined(session, caller.key_id, found.id):
            raise ForbiddenError(scope)


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raise ``ForbiddenError`` if a caller lacks a scope."""
    if not caller.allows(scope):
        raise ForbiddenError(scope)


class GuardedRoute(APIRoute):
    """A route that reads no body from unauthorised callers, and parses JSON itself."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler, which first checks its endpoint's requirements."""
        handle = super().get_route_handler()
        needs = _needs(self.dependant)
        # Every JSON body of the API is a single model.
        body = None if self.body_field is None else self.body_field.field_info.annotation

        async def answer(request: Request) -> Response:
            if body is not None:
                request = await read_body(request, cast("type[BaseModel]", body))
            return await handle(request)

        async def guarded(request: Request) -> Response:
            caller = None
            for need in needs:
                caller = await need(request)
            if caller is None:
                return await answer(request)
            return await execute_once(request, caller, answer)

        return guarded


def _needs(dependant: Dependant) -> list[Needs]:
    found = [dependant.call] if isinstance(dependant.call, Needs) else []
    for inner in dependant.dependencies:
        found += _needs(inner)
    return found


def _who_has(scope: Scope, auditing: Auditing | None = None) -> Any:  # noqa: ANN401 - a dependency
    return Security(Needs(scope, auditing), scopes=[scope])


def metrics_access(*, public: bool) -> Sequence[DependsOn]:
    """Return the access requirement of ``/metrics``."""
    return () if public else (_who_has(Scope.LOG_READ),)


def part(name: str) -> Any:  # noqa: ANN401 - what FastAPI calls a dependency
    """Return the dependency that gives an endpoint this part of the application's state."""

    # Asynchronous, like all dependencies that only look something up: others take a thread.
    async def look_up(request: Request) -> object:
        return getattr(request.app.state, name)

    return Depends(look_up)


async def disconnection(request: Request) -> None:
    """Return when the caller has disconnected; call after the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _left(request: Request) -> AsyncIterator[threading.Event]:
    left = threading.Event()

    async def watch() -> None:
        await disconnection(request)
        left.set()

    watching = asyncio.ensure_future(watch())
    try:
        yield left
    finally:
        watching.cancel()


Left = Annotated[threading.Event, Depends(_left)]
"""Set when the caller disconnects: work done only for it may stop."""


async def _plan_maker(services: Annotated[Services, part("services")], left: Left) -> PlanMaker:
    return partial(services.planners.plan, left=left)


Make = Annotated[PlanMaker, Depends(_plan_maker)]
"""Makes plans within the limits of one call, while its caller is there."""


ServicesOf = Annotated[Services, part("services")]
ForgetWriter = Annotated[Caller, _who_has(Scope.FORGET_WRITE)]
ForgetReader = Annotated[Caller, _who_has(Scope.FORGET_READ)]
ModelsReader = Annotated[Caller, _who_has(Scope.MODELS_READ)]
ModelsWriter = Annotated[Caller, _who_has(Scope.MODELS_WRITE)]
DataWriter = Annotated[Caller, _who_has(Scope.DATA_WRITE)]
LogReader = Annotated[Caller, _who_has(Scope.LOG_READ)]
Auditor = Annotated[Caller, _who_has(Scope.AUDIT)]
DefinitionReader = Annotated[Caller, _who_has(Scope.MODELS_READ, Auditing.ANY)]
DatasetDefiner = Annotated[Caller, _who_has(Scope.DATA_WRITE, Auditing.ANY)]
ModelDefiner = Annotated[Caller, _who_has(Scope.MODELS_WRITE, Auditing.ANY)]
ForgetAsker = Annotated[Caller, _who_has(Scope.FORGET_WRITE, Auditing.ANY)]
OwnDataWriter = Annotated[Caller, _who_has(Scope.DATA_WRITE, Auditing.OWN)]
OwnModelsReader = Annotated[Caller, _who_has(Scope.MODELS_READ, Auditing.OWN)]
OwnModelsWriter = Annotated[Caller, _who_has(Scope.MODELS_WRITE, Auditing.OWN)]
OwnForgetReader = Annotated[Caller, _who_has(Scope.FORGET_READ, Auditing.OWN)]
Admin = Annotated[Caller, _who_has(Scope.ADMIN)]

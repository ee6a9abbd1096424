"""Who may call what: credentials, scopes, and the services that handle a request.

A router whose routes are ``GuardedRoute`` checks this before it reads any of the body.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, cast

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends as DependsOn
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.responses import Response

from app import log_context
from app.access.api_keys import Caller
from app.access.gate import Gate
from app.api.protocol.idempotency import execute_once
from app.api.protocol.quotas import limit_calls
from app.api.protocol.reading import read_body
from app.domain.errors import ForbiddenError
from app.domain.scopes import Scope
from app.log import actor
from app.services import Services

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An API key, or an access token of the issuer that the service trusts. "
    "Each operation lists the scope that it needs; `admin` allows all.",
)
_NO_ADDRESS = "local"
_CALLER = "expunge.caller"  # in the scope, which is certain to be this request's own


def services_of(request: Request) -> Services:
    """Return the services that the application was made with."""
    services: Services = request.app.state.services
    return services


async def _services(request: Request) -> Services:
    # Asynchronous, like all dependencies that only look something up: others take a thread each.
    return services_of(request)


def address_of(request: Request) -> str:
    """Return where a request comes from, for counting failures."""
    return _NO_ADDRESS if request.client is None else request.client.host


async def authenticate(request: Request) -> Caller:
    """Return the caller, who is the actor from now on; determined once per request.

    Raises:
        UnauthenticatedError: the caller is unknown.
        TooManyRequestsError: too many calls, or too many failures from this address.
        IssuerUnavailableError: the access token cannot be checked now.
    """
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    gate: Gate = request.app.state.gate
    sent: HTTPAuthorizationCredentials | None = await _bearer(request)
    caller = await gate.caller_of(None if sent is None else sent.credentials, address_of(request))
    await limit_calls(request, gate, caller)
    actor.become(caller.key_id)
    log_context.note(caller=caller.key_id)
    request.scope[_CALLER] = caller
    return caller


async def authenticate_again(request: Request) -> None:
    """Check the caller of a long call again, without counting another call.

    Raises:
        UnauthenticatedError: the key was revoked or has expired meanwhile.
    """
    gate: Gate = request.app.state.gate
    sent: HTTPAuthorizationCredentials | None = await _bearer(request)
    await gate.caller_of(None if sent is None else sent.credentials, address_of(request))


class Needs:
    """Lets in callers that have a scope; no others reach the endpoint."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(
        self,
        request: Request,
        _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)] = None,
    ) -> Caller:
        """Return the caller.

        Raises:
            ForbiddenError: the caller lacks the scope.
        """
        return await self.admit(request)

    async def admit(self, request: Request) -> Caller:
        """Do the same when only the head of the request has been read."""
        caller = await authenticate(request)
        require_scope(caller, self.scope)
        return caller


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raise ``ForbiddenError`` if a caller lacks a scope."""
    if not caller.allows(scope):
        raise ForbiddenError(scope)


class GuardedRoute(APIRoute):
    """A route that reads no body from callers that it refuses, and parses JSON itself."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return the handler, which checks first what its endpoint needs."""
        handle = super().get_route_handler()
        needs = _needs(self.dependant)
        # Every body of the API is one model.
        body = None if self.body_field is None else self.body_field.field_info.annotation

        async def answer(request: Request) -> Response:
            if body is not None:
                readers = request.app.state.readers
                request = await read_body(request, cast("type[BaseModel]", body), readers)
            return await handle(request)

        async def guarded(request: Request) -> Response:
            caller = None
            for need in needs:
                caller = await need.admit(request)
            if caller is None:
                return await answer(request)
            return await execute_once(request, caller, answer)

        return guarded


def _needs(dependant: Dependant) -> list[Needs]:
    found = [dependant.call] if isinstance(dependant.call, Needs) else []
    for inner in dependant.dependencies:
        found += _needs(inner)
    return found


def _who_has(scope: Scope) -> Any:  # noqa: ANN401 - what FastAPI calls a dependency
    return Security(Needs(scope), scopes=[scope])


def metrics_access(*, public: bool) -> Sequence[DependsOn]:
    """Return what ``/metrics`` asks of a caller."""
    return () if public else (_who_has(Scope.LOG_READ),)


ServicesOf = Annotated[Services, Depends(_services)]
ForgetWriter = Annotated[Caller, _who_has(Scope.FORGET_WRITE)]
ForgetReader = Annotated[Caller, _who_has(Scope.FORGET_READ)]
ModelsReader = Annotated[Caller, _who_has(Scope.MODELS_READ)]
ModelsWriter = Annotated[Caller, _who_has(Scope.MODELS_WRITE)]
DataWriter = Annotated[Caller, _who_has(Scope.DATA_WRITE)]
LogReader = Annotated[Caller, _who_has(Scope.LOG_READ)]
Admin = Annotated[Caller, _who_has(Scope.ADMIN)]

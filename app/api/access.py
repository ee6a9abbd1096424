"""Who may call what: bearer keys and their scopes, and the services behind a request."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, Request
from fastapi.params import Depends as DependsOn
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app import log_context
from app.domain.errors import ForbiddenError, UnauthenticatedError
from app.ledger import api_keys
from app.ledger.api_keys import Caller, Scope
from app.services import Services

_bearer = HTTPBearer(auto_error=False, description="An API key")


def services_of(request: Request) -> Services:
    """Return the services that the application was made with."""
    services: Services = request.app.state.services
    return services


def authenticate(
    services: Annotated[Services, Depends(services_of)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Return the caller, or raise ``UnauthenticatedError``."""
    if credentials is not None:
        with services.database.transaction() as session:
            caller = api_keys.caller_of(session, credentials.credentials)
        if caller is not None:
            log_context.note(caller=caller.key_id)
            return caller
    raise UnauthenticatedError("send a valid API key as 'Authorization: Bearer …'")


def _requires(scope: Scope) -> Callable[[Caller], Caller]:
    def check(caller: Annotated[Caller, Depends(authenticate)]) -> Caller:
        if not caller.allows(scope):
            raise ForbiddenError(scope)
        return caller

    return check


def metrics_access(*, public: bool) -> Sequence[DependsOn]:
    """Return what ``/metrics`` asks of a caller."""
    return () if public else (Depends(_requires(Scope.LOG_READ)),)


ServicesOf = Annotated[Services, Depends(services_of)]
ForgetWriter = Annotated[Caller, Depends(_requires(Scope.FORGET_WRITE))]
ForgetReader = Annotated[Caller, Depends(_requires(Scope.FORGET_READ))]
ModelsReader = Annotated[Caller, Depends(_requires(Scope.MODELS_READ))]
ModelsWriter = Annotated[Caller, Depends(_requires(Scope.MODELS_WRITE))]
DataWriter = Annotated[Caller, Depends(_requires(Scope.DATA_WRITE))]
LogReader = Annotated[Caller, Depends(_requires(Scope.LOG_READ))]
Admin = Annotated[Caller, Depends(_requires(Scope.ADMIN))]

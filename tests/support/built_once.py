"""What each application would build anew, built once for all tests of a process.

Nothing that a test could tell apart is shared: routes, the OpenAPI document and keys are the same
wherever they are made, and a pool of processes that a test has closed is not used again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import fastapi.applications
import pytest
from botocore.loaders import JSONFileLoader
from fastapi.routing import APIRoute, _IncludedRouter
from starlette.routing import BaseRoute

from app.evidence.certificates import signing
from app.planning import planner
from app.runtime.processes.process_pool import ProcessPool


@contextmanager
def built_once() -> Iterator[None]:
    """Share what takes long to build between all applications that are made meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_IncludedRouter, "_build_effective_context", _routes_once())
        patch.setattr(fastapi.applications, "get_openapi", _documents_once())
        # OpenSSL checks an RSA key's primes whenever it reads them.
        read = cache(signing.load_pem_private_key)
        patch.setattr(signing, "load_pem_private_key", read)
        # Each client would parse megabytes that describe Amazon's services.
        parsed = cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: parsed(path))
        pool = _pools_once()
        patch.setattr(planner, "ProcessPool", pool)
        yield


def _routes_once() -> Callable[..., Any]:
    """Return what completes a route by what the router that includes it demands of callers."""
    build = _IncludedRouter._build_effective_context
    built: dict[object, tuple[BaseRoute, Any]] = {}

    def once(self: _IncludedRouter, route: BaseRoute) -> Any:
        if not isinstance(route, APIRoute):
            return build(self, route)
        key = (id(route), _demands(self))
        if key not in built:
            built[key] = route, build(self, route)  # with the route, its id is no other's
        return built[key][1]

    return once


def _documents_once() -> Callable[..., dict[str, Any]]:
    """Return what describes an application: anew where it has other routes than those before."""
    describe = fastapi.applications.get_openapi
    described: dict[object, dict[str, Any]] = {}

    def once(*, routes: Sequence[BaseRoute], **more: Any) -> dict[str, Any]:
        key = tuple(map(_identity, routes))
        if key not in described:
            described[key] = describe(routes=routes, **more)
        return described[key]

    return once


def _identity(route: BaseRoute) -> object:
    if isinstance(route, _IncludedRouter):
        return id(route.original_router), _demands(route)
    endpoint = getattr(route, "endpoint", None)
    # Each application has a function of its own that answers with its document.
    return getattr(route, "path", None), getattr(endpoint, "__qualname__", None)


def _demands(included: _IncludedRouter) -> object:
    return tuple(each.dependency for each in included.include_context.dependencies)


def _pools_once() -> Callable[..., ProcessPool]:
    """Return what makes pools of processes: one for all whose limits are the same."""
    made: dict[object, ProcessPool] = {}

    def once(name: str, **limits: Any) -> ProcessPool:
        key = (name, *sorted(limits.items()))
        if key not in made or made[key]._closing.is_set():
            made[key] = ProcessPool(name, **limits)
        return made[key]

    return once
